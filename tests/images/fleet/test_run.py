"""A run from lease to outcome, with an executor that does as it is told; the real ones are in tests/integration."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from images.engine.gpus import Attachment
from images.errors import Problem, UserError
from images.fleet import images, run
from images.fleet.config import ONE_MACHINE
from images.fleet.executors import Ended, Placed
from images.fleet.folder import JobFolder
from images.fleet.model import FleetRun, Job, JobRecord, JobResult, Lease
from images.fleet.run import Outcome
from tests.support import fleet_records
from tests.support.fleet_records import NAME, claim, claims, installed
from tests.support.sources import SOURCES
from validate.claims import Claim, ClaimSet, Tier
from validate.judging import Status

PIP = claims(claim("pip"))


def job(number: int) -> Job:
    return fleet_records.job(number, PIP)


def result(one: Job, held_to: ClaimSet = PIP, **more: Any) -> JobResult:
    return fleet_records.result(one, held_to, pip=installed(), **more)


class Obedient:
    """Ends each job as it was told; a job it was told nothing of is interrupted."""

    name = "obedient"

    def __init__(self, answers: Mapping[str, Ended]) -> None:
        self.answers, self.started, self.cancelled = answers, list[str](), False
        self.placed: list[Placed] = []

    @classmethod
    def of(cls, *results: JobResult) -> "Obedient":
        return cls({one.record.key: Ended(key=one.record.key, result=one) for one in results})

    def start(self, jobs: Sequence[Placed]) -> Mapping[str, str]:
        self.placed += jobs
        self.started += [one.key for one in jobs]
        return {one.key: f"id-{number}" for number, one in enumerate(jobs)}

    def ended(self) -> Iterator[Ended]:
        for key in self.started:
            if key not in self.answers:
                raise KeyboardInterrupt
            yield self.answers[key]

    def cancel(self) -> None:
        self.cancelled = True


def go(
    folder: JobFolder, executor: Obedient, *jobs: Job, outdated: Mapping[str, JobRecord] | None = None, **more: Any
) -> dict[str, Outcome]:
    """Key -> outcome."""
    options = {"progress": lambda _key, _text: None, **more}
    given = {ONE_MACHINE.plain: list(jobs)}
    found = run.run(
        given, outdated or {}, fleet=ONE_MACHINE, folder=folder, executor=executor, sources=SOURCES, **options
    )
    return {one.job.key: one for one in found}


def leases(folder: JobFolder) -> dict[str, Lease]:
    return {key: lease for key in folder.job_keys() if (lease := folder.lease(key))}


def test_what_is_judged_has_a_record_and_what_is_lost_a_cause(tmp_path: Path) -> None:
    good, lost, folder = job(1), job(2), JobFolder(tmp_path)
    executor = Obedient.of(result(good))
    executor.answers = {**executor.answers, lost.key: Ended(key=lost.key, cause="node died")}
    outcomes = go(folder, executor, good, lost)
    assert outcomes[good.key].verdict and outcomes[lost.key].cause == "node died"
    failure = folder.failure(lost.key)
    assert failure and failure.cause == "node died" and folder.record(lost.key) is None
    assert not leases(folder)
    assert (folder.job_path(good.key) / "report.md").is_file()
    assert (folder.done(good.key), folder.done(lost.key)) == (True, False)


def test_an_interrupt_cancels_gives_every_job_back_and_leaves_reports_of_what_was_judged(tmp_path: Path) -> None:
    one, two, folder = job(1), job(2), JobFolder(tmp_path)
    executor = Obedient.of(result(one))
    with pytest.raises(KeyboardInterrupt):
        go(folder, executor, one, two)
    assert executor.cancelled and not leases(folder) and folder.done(one.key)


def test_a_worker_that_kept_its_record_before_it_was_lost_has_judged(tmp_path: Path) -> None:
    one, folder = job(1), JobFolder(tmp_path)

    class Late(Obedient):
        def ended(self) -> Iterator[Ended]:
            folder.keep(result(one))
            yield Ended(key=one.key, cause="the job was killed")

    assert go(folder, Late({}), one)[one.key].verdict is not None


@pytest.mark.parametrize("clock", [-7, 7])
def test_a_new_run_does_again_what_has_a_record_whatever_its_workers_clock_says(tmp_path: Path, clock: int) -> None:
    one, then, folder = job(1), datetime.now(UTC) + timedelta(days=clock), JobFolder(tmp_path)
    before = result(one)
    folder.keep(replace(before, record=before.record.model_copy(update={"ended": then})))
    executor = Obedient.of(result(one))
    outcome = go(folder, executor, one, outdated=folder.records())[one.key]
    assert outcome.verdict and executor.started == [one.key] and list(tmp_path.rglob("earlier"))


def test_what_another_judged_since_the_plan_is_not_judged_again(tmp_path: Path) -> None:
    one, folder, executor = job(1), JobFolder(tmp_path), Obedient({})
    folder.keep(result(one))
    outcome = go(folder, executor, one)[one.key]
    assert outcome.verdict and outcome.record == folder.record(one.key) and not executor.started


def test_what_a_dead_run_left_on_the_cluster_is_known_until_it_is_watched(tmp_path: Path) -> None:
    class Refusing(Obedient):
        def start(self, _jobs: Sequence[Placed]) -> Mapping[str, str]:
            raise UserError(Problem(where="--on slurm", cause="sbatch refuses"))

    one, folder, dead = job(1), JobFolder(tmp_path), FleetRun.new("obedient")
    with folder.running(dead):
        folder.take(dead, one)
        folder.submitted(one.key, dead.id, "7")
    with pytest.raises(UserError, match="sbatch refuses"):
        go(folder, Refusing({}), one)
    assert [lease.cluster_id for lease in leases(folder).values()] == ["7"]
    executor = Obedient({})
    with pytest.raises(KeyboardInterrupt):
        go(folder, executor, one)
    assert [placed.cluster_id for placed in executor.placed] == ["7"] and not leases(folder), "cancelled: watched"


def test_a_workers_own_claims_do_not_count(tmp_path: Path) -> None:
    """Evidence for no claim would be PASS of nothing: the job's claims are judged, and none was measured for."""
    one = fleet_records.job(1, claims(claim("pip"), claim("torch")))
    outcome = go(JobFolder(tmp_path), Obedient.of(result(one, claims())), one)[one.key]
    assert outcome.verdict and [str(found.status) for found in outcome.verdict.claims] == ["UNPROVEN"] * 2


def test_evidence_of_another_image_is_a_failure_of_its_job_alone(tmp_path: Path) -> None:
    bad, good, folder = job(1), job(2), JobFolder(tmp_path)
    outcomes = go(folder, Obedient.of(result(bad, digest="sha256:" + "9" * 64), result(good)), bad, good)
    assert "the evidence is of" in outcomes[bad.key].cause and outcomes[good.key].verdict
    failure = folder.failure(bad.key)
    assert failure and failure.cause == outcomes[bad.key].cause
    assert folder.record(bad.key) is None, "the next run does it again"


@pytest.mark.parametrize(
    ("theirs", "status"),
    [
        (claim("pip", tier=Tier.GPU), Status.PASS),
        (claim("pip", tier=Tier.GPU, required=False), Status.PASS),
        (claim("pip", "24.0", tier=Tier.GPU), Status.UNPROVEN),
        (claim("torch", tier=Tier.GPU), Status.UNPROVEN),
    ],
    ids=["the same", "optional", "less is expected", "left out"],
)
def test_evidence_of_gpus_is_judged_by_the_submitters_claims_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: Claim, status: Status
) -> None:
    """A worker writes claims for its GPUs, to measure by; the submitter writes its own."""
    ours, machines = claims(claim("pip", tier=Tier.GPU)), list[Attachment]()

    def claims_of(*_given: object, attachment: Attachment, **_more: object) -> ClaimSet:
        machines.append(attachment)
        return ours

    monkeypatch.setattr(images.validating, "claims_of", claims_of)
    one, folder = job(1).model_copy(update={"tiers": (Tier.GPU,), "arch": "9.0"}), JobFolder(tmp_path)
    outcome = go(folder, Obedient.of(result(one, claims(theirs))), one)[one.key]
    assert outcome.verdict and outcome.verdict.overall is status and len(machines) == 1
    kept = folder.job(one.key)
    assert kept and kept.claim_set == ours, "`status` judges by the same"


def test_the_record_of_another_job_is_not_taken(tmp_path: Path) -> None:
    one, two, folder = job(1), job(2), JobFolder(tmp_path)
    theirs = result(one)
    swapped = replace(theirs, record=theirs.record.model_copy(update={"key": two.key}))
    outcome = go(folder, Obedient({one.key: Ended(key=one.key, result=swapped)}), one)[one.key]
    assert outcome.cause == f"its worker gave back the record of {two.key}" and folder.record(two.key) is None


@pytest.mark.parametrize("fault", ["", "elsewhere", "other image", "custom base", "nothing"])
def test_a_built_image_is_judged_by_what_the_registry_has_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Neither digest nor labels nor claims of the worker count."""
    staging = "a.test/other" if fault == "elsewhere" else "a.test/b"
    built = Job(image=NAME, tiers=(Tier.STATIC,), context="c" * 64, staging=staging)
    digest, folder = "sha256:" + "ab" * 32, JobFolder(tmp_path)
    labels = {"dev.truetag.base-origin": "custom"} if fault == "custom base" else {}
    there = images.Found(
        digest="sha256:" + "9" * 64 if fault == "other image" else digest,
        labels=labels,
        history=(),
        reference=f"a.test/b@{digest}",
    )
    monkeypatch.setattr(images, "in_registry", lambda *_: None if fault == "nothing" else there)
    monkeypatch.setattr(images.validating, "claims_of", lambda *_given, **_more: PIP)
    executor = Obedient.of(result(built, PIP, digest=digest, build={"digest": digest}))
    outcome = go(folder, executor, built)[built.key]
    if fault:
        assert outcome.verdict is None and folder.record(built.key) is None
        told = {"other image": "999", "custom base": "stands on a custom base", "nothing": "is nothing"}
        told |= {"elsewhere": "is not in a.test/other"}
        assert told[fault] in outcome.cause
        return
    assert outcome.verdict and [str(one.status) for one in outcome.verdict.claims] == ["PASS"]
    kept = folder.job(built.key)
    assert kept and kept.key == built.key and kept.digest == digest and kept.claims == json.loads(PIP.dumps())
    assert (folder.job_path(built.key) / "build.json").is_file(), "`publish --attestation` takes this folder"
