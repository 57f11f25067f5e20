"""Builds on workers: what they are told, what counts of their answer. Real workers are in tests/integration."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from images.engine.failures import Cancelled
from images.errors import Problem, UserError
from images.fleet import booking
from images.fleet.builds import description, sets, submitting
from images.fleet.builds.ledger import BuildLedger
from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.builds.pool import Pool
from images.fleet.builds.running import BuildEnd, BuildRun
from images.fleet.builds.sets import Parent, SetOptions
from images.fleet.builds.submitting import UnusableError
from images.fleet.config import ONE_MACHINE
from images.fleet.executors.executor import Ended, Placed
from images.fleet.model import FleetRun, WorkerInfo
from images.fleet.results import ToldProblem
from images.fleet.submission import Submission
from images.locking import lock_file
from images.nightly import judge as nightly_judge
from images.planning import plan
from images.publish import attestation
from images.registry.reference import Repository
from images.validation import limits
from tests.support import fleet_records
from tests.support.fleet_records import claim, claims, installed
from tests.support.nightly_samples import CONTROL, at
from tests.support.sources import SOURCES
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence, Outcome, Record
from validate.judge import judge
from validate.judging import Status

NAME = "cu126-torch27"
DIGEST = "sha256:" + "ab" * 32
RUN = "x"
PIP = claims(claim("pip"))


def job(**more: Any) -> BuildJob:
    return BuildJob(**{"image": NAME, "context": "c" * 64, "tiers": (Tier.STATIC,), **more})


def result(one: BuildJob, held_to: ClaimSet = PIP, digest: str = DIGEST, **more: Any) -> BuildResult:
    """Of a worker that measured pip 25.0."""
    about = fleet_records.job(0, held_to, digest=digest)
    now = datetime.now(UTC)
    given: dict[str, Any] = {
        "key": one.key,
        "run": RUN,
        "worker": WorkerInfo(executor="obedient", node="n1"),
        "started": now,
        "ended": now,
        "digest": DIGEST,
        "bytes": 1,
        "evidence": fleet_records.judged(about, held_to, pip=installed()).evidence,
    }
    return BuildResult(**{**given, **more})


class Obedient:
    """Ends each job as `answer` says; a job without an answer goes on until it is cancelled."""

    name = "obedient"

    def __init__(self, answer: Any) -> None:
        self.answer, self.started, self.cancelled = answer, list[Placed](), False
        self.going = list[Placed]()

    def start(self, jobs: Sequence[Placed]) -> Mapping[str, str]:
        self.started += jobs
        self.going += jobs
        return {}

    def ended(self) -> Iterator[Ended]:
        while self.going and not self.cancelled:
            found = self.answer(self.going[0])
            if found is not None:
                self.going.pop(0)
                yield found

    def states(self) -> Mapping[str, str]:
        return {}

    def running(self) -> Mapping[str, float]:
        return {}

    def cancel(self) -> None:
        self.cancelled = True
        self.going.clear()


def submission(executor: Obedient, run: str = RUN) -> Submission:
    return Submission(fleet=ONE_MACHINE, executor=executor, run=run, say=lambda _key, _text: None)


def run_of(*jobs: BuildJob) -> FleetRun:
    """A run of these jobs that begins now."""
    return booking.new_run("obedient", [one.key for one in jobs])


def run(folder: Path, executor: Obedient, *jobs: BuildJob, goes_on: FleetRun | None = None, **more: Any) -> BuildRun:
    """A new run of these jobs, or one that goes on."""
    of_jobs = goes_on or run_of(*jobs)
    ledger = BuildLedger(folder)
    outdated = {} if goes_on else ledger.records_of(one.key for one in jobs)
    given = {"run_of": of_jobs, "ledger": ledger, "submission": submission(executor, of_jobs.id), "outdated": outdated}
    return BuildRun(**{**given, "took": {}, **more})


def built(folder: Path, executor: Obedient, *jobs: BuildJob, **more: Any) -> list[BuildEnd]:
    """What a run of these jobs came to, where each image is judged without trouble."""
    ends = run(folder, executor, *jobs, **more).outcomes(jobs, lambda end: end)
    return [end for end in ends if isinstance(end, BuildEnd)]


def of(one: Placed) -> BuildJob:
    """The job that a worker was given."""
    return BuildJob.model_validate_json(one.task.job)  # type: ignore[attr-defined]


def result_to(one: Placed, **more: Any) -> BuildResult:
    """Of the worker that was given this job, for the run that submitted it."""
    return result(of(one), **{"run": one.task.run, **more})  # type: ignore[attr-defined]


# --- what a worker is told --------------------------------------------------------------------------------------------


def test_two_jobs_of_one_image_have_names_of_their_own_in_an_engine_that_they_share() -> None:
    named = {job(label="bisect-0").suffix("1"), job(label="bisect-1").suffix("1"), job(label="bisect-0").suffix("2")}
    assert len(named) == 3
    for suffix in named:
        Repository.parse(f"a.test/{NAME}{suffix}")  # a name that Docker takes


def test_a_set_is_the_checkouts_image_at_other_versions() -> None:
    moved = at({"torchao": "0.12.0"})
    told = sets.job_of(moved, {"cu126-torch27/light.txt": b"x\n"}, [Tier.STATIC], "bisect", options())
    assert told.pins == {"torchao": "0.12.0"} and told.lock == {"cu126-torch27/light.txt": "x\n"}
    assert description.image_of(BuildJob.model_validate_json(told.model_dump_json()), SOURCES).pins == moved.image.pins
    assert (told.over, told.through) == ("", "")


def test_a_worker_with_another_checkout_builds_nothing() -> None:
    """Somebody moves a pin, or edits a lock, while the job waits in Slurm's queue."""
    known = description.context_digest(CONTROL, SOURCES, {})
    description.require_same_context(job(context=known), description.context_digest(CONTROL, SOURCES, {}))
    for other in (
        description.context_digest(at({"torchao": "0.12.0"}), SOURCES, {}),
        description.context_digest(CONTROL, SOURCES, {CONTROL.image.base.reference: DIGEST}),
    ):
        with pytest.raises(UserError, match="leave the checkout as it is"):
            description.require_same_context(job(context=known), other)


def test_an_image_that_the_checkout_of_a_worker_refuses_is_told() -> None:
    refused = next(one.name for one in plan.plan(SOURCES) if not one.accepted)
    with pytest.raises(UserError, match="is refused on this worker"):
        description.image_of(job(image=refused), SOURCES)


def test_an_image_of_a_platform_without_machines_is_refused() -> None:
    with pytest.raises(UserError, match="no machine of the fleet is linux/arm64"):
        submitting.placed(job(platform="linux/arm64"), submission(Obedient(None)))


# --- what counts of its answer ----------------------------------------------------------------------------------------


def test_each_result_comes_with_its_job_and_one_that_was_lost_stops_no_other(tmp_path: Path) -> None:
    good, bad, lost = job(label="a"), job(label="b"), job(label="c")
    told = (ToldProblem(where="step 3", cause="no space", then="make room"),)
    answers = {
        good.key: lambda placed: Ended(key=good.key, result=result_to(placed)),
        bad.key: lambda placed: Ended(key=bad.key, result=result_to(placed, digest="", problems=told)),
        lost.key: lambda _placed: Ended(key=lost.key, cause="the node died"),
    }
    executor = Obedient(lambda placed: answers[placed.key](placed))
    found = {one.job.label: one.result for one in built(tmp_path, executor, good, bad, lost)}
    assert isinstance(found["a"], BuildResult) and found["a"].key == good.key and executor.cancelled
    assert str(found["b"]) == "step 3: no space\n    next: make room"
    assert "the node died" in str(found["c"]) and "the same command with --resume" in str(found["c"])


@pytest.mark.parametrize("other", [{"run": "of-last-week"}, {"key": job(tiers=(Tier.CPU,)).key}])
def test_the_result_of_another_run_or_job_is_none(tmp_path: Path, other: dict[str, str]) -> None:
    """Slurm was set up anew, and gave a job a number that a file of last week bears."""
    executor = Obedient(lambda placed: Ended(key=placed.key, result=result_to(placed, **other)))
    (end,) = built(tmp_path, executor, job())
    assert isinstance(end.result, UserError) and "is of another job" in str(end.result) and "--out" in str(end.result)


def test_an_interrupt_cancels_what_was_begun(tmp_path: Path) -> None:
    def interrupted(_placed: Placed) -> Ended:
        raise KeyboardInterrupt

    executor = Obedient(interrupted)
    with pytest.raises(KeyboardInterrupt):
        built(tmp_path, executor, job())
    assert executor.cancelled


def test_the_evidence_is_judged_here_and_the_claims_of_a_worker_do_not_count(tmp_path: Path) -> None:
    _, verdict = submitting.judged(job(), result(job()), PIP, tmp_path)
    assert verdict.overall is Status.PASS and json.loads((tmp_path / "verdict.json").read_text())
    stricter = claims(claim("pip"), claim("einops"))
    _, verdict = submitting.judged(job(), result(job()), stricter, tmp_path)
    assert verdict.overall is not Status.PASS
    other = result(job(), claims(claim("pip", version="24.0")))
    _, verdict = submitting.judged(job(), other, PIP, tmp_path)
    assert verdict.overall is Status.PASS, "what the worker held it to is not asked"


def test_what_is_kept_of_a_build_is_read_again_with_the_same_verdict(tmp_path: Path) -> None:
    """`publish` reads it. What is unproven on this machine alone, as it lacks a wheel, is no contradiction."""
    open_here = claims(claim("pip"), claim("flash-attn", unproven="no wheel is here"))
    worker = claims(claim("pip"), claim("flash-attn"), claim("later", tier=Tier.CPU))
    _, verdict = submitting.judged(job(), result(job(), worker), open_here, tmp_path)
    info: Any = SimpleNamespace(id=DIGEST)
    again = attestation.read_folder(tmp_path, NAME, info)
    assert [(one.claim.subject, one.status) for one in again.verdict.claims] == [
        (one.claim.subject, one.status) for one in verdict.claims
    ]
    assert again.verdict.of(Status.UNPROVEN)[0].reason == "no wheel is here"


def withheld(evidence: Evidence, held_to: ClaimSet = PIP) -> str:
    asked = job(tiers=(Tier.STATIC, Tier.CPU))
    verdict = judge(limits.of_evidence(held_to, evidence), evidence, asked.tiers)
    return submitting.why_withheld(asked, evidence, verdict)


def test_an_image_gets_no_name_for_what_its_worker_did_not_measure() -> None:
    """None of it is a failure: the verdict is UNPROVEN."""
    whole = Evidence.loads(result(job()).evidence)
    missing = Record(probe="static.x", outcome=Outcome.MISSING, seconds=0.0)
    assert withheld(whole) == ""
    assert withheld(replace(whole, records=())) == "nobody measured S1 pip"
    assert withheld(replace(whole, records=(missing,))) == "nobody measured S1 pip"
    assert "could not measure S1 pip" in withheld(replace(whole, host={"not_given": {"S1 pip": "no reason"}}))
    open_here = claims(claim("pip"), claim("flash-attn", probe="static.y", unproven="no wheel is here"))
    assert withheld(whole, open_here) == "", "what this machine itself can not ask is no fault of the worker"
    assert withheld(whole, claims(claim("pip", version="24.0"))) == "1 claim failed (S1 pip)"


def test_an_image_excuses_itself_from_no_more_than_its_job_allows() -> None:
    custom = {"dev.truetag.base-origin": "custom"}
    (optional, *_) = [pin.name for pin in CONTROL.image.pins if pin.optional]
    lacking = {"dev.truetag.missing": json.dumps({optional: f"{optional} 1.0: no wheel"})}
    for allowed, labels in ((job(base="a.test/b@sha256:1"), custom), (job(), lacking), (job(strict=True), {})):
        submitting.require_allowed(allowed, CONTROL.image, labels)
    with pytest.raises(UserError, match="custom base, and none was asked for"):
        submitting.require_allowed(job(), CONTROL.image, custom)
    with pytest.raises(UserError, match=f"lacks {optional}"):
        submitting.require_allowed(job(strict=True), CONTROL.image, lacking)


def test_evidence_of_another_image_is_none(tmp_path: Path) -> None:
    other = result(job(), digest="sha256:" + "cd" * 32)
    with pytest.raises(UnusableError, match="the evidence is of"):
        submitting.judged(job(), other, PIP, tmp_path)
    with pytest.raises(UnusableError):
        submitting.judged(job(), result(job(), evidence="{}"), PIP, tmp_path)


# --- nightly runs -----------------------------------------------------------------------------------------------------


def options(**more: Any) -> SetOptions:
    return SetOptions(**{"sources": SOURCES, "out": Path("out"), "cache": Path("cache"), "bases": {}, **more})


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index is asked what wheels bring."""
    monkeypatch.setattr(nightly_judge.measure_contents, "update", lambda *_rest: {})


def judge_by(executor: Obedient, out: Path, **more: Any) -> Any:
    return sets.on_workers(Pool(executor), submission(executor), options(out=out, tiers=[Tier.STATIC], **more))


def test_versions_that_can_not_be_built_are_an_answer_and_a_lost_worker_is_none(tmp_path: Path, written: None) -> None:
    told = (ToldProblem(where="x", cause="y", then=""),)
    unbuildable = Obedient(lambda one: Ended(key=one.key, result=result(of(one), cause="no kernel", problems=told)))
    assert judge_by(unbuildable, tmp_path)(CONTROL, [], "canary").cause == "no kernel"
    for built, why in (
        (lambda _one: None, "gave no result"),
        (lambda one: result(of(one), problems=told), "x: y"),
        (lambda _one: result(job(), cause="no kernel", problems=told), "is of another job"),
    ):
        executor = Obedient(lambda one, built=built: Ended(key=one.key, result=built(one)))
        with pytest.raises(UserError, match=why):
            judge_by(executor, tmp_path)(CONTROL, [], "canary")


def test_a_set_over_an_image_is_judged_by_the_claims_of_this_checkout(tmp_path: Path, written: None) -> None:
    """The worker measured pip alone: what the image is held to beside that is open."""
    parent = Parent(reference=f"a.test/b@{DIGEST}", digest=DIGEST, labels={})
    executor = Obedient(lambda one: Ended(key=one.key, result=result(of(one))))
    found = judge_by(executor, tmp_path, parents={NAME: parent})(CONTROL, [], "control")
    assert found.overall[Tier.STATIC] is not Status.PASS and len(found.claims) > 20
    told = of(executor.started[0])
    assert (told.over, told.over_digest, told.tiers) == (parent.reference, DIGEST, (Tier.STATIC,))
    lock = {path: text.encode() for path, text in told.lock.items()}
    lock_file.write(lock, tmp_path / "locks")
    assert lock_file.read(CONTROL.image, tmp_path / "locks").files == CONTROL.lock.files


def test_the_address_of_a_wheel_mirror_travels_beside_the_job_of_a_set(tmp_path: Path, written: None) -> None:
    executor = Obedient(lambda one: Ended(key=one.key, result=result(of(one))))
    judge_by(executor, tmp_path, wheel_mirror="https://a.test/a-token")(CONTROL, [], "control")
    (sent,) = executor.started
    assert sent.task.wheel_mirror == "https://a.test/a-token"  # type: ignore[attr-defined]
    assert of(sent).wheel_mirror and "a-token" not in sent.task.job  # type: ignore[attr-defined]


def placed(label: str) -> Placed:
    return submitting.placed(job(label=label), submission(Obedient(None)))


def test_threads_wait_side_by_side_and_each_gets_its_own_end() -> None:
    """The first job ends only when all three were handed over."""
    executor = Obedient(lambda one: Ended(key=one.key) if len(executor.started) == 3 else None)
    jobs = [placed(str(number)) for number in range(3)]
    with Pool(executor) as pool, ThreadPoolExecutor(3) as threads:
        running = [threads.submit(pool.run, one) for one in jobs]
        assert [future.result(60).key for future in running] == [one.key for one in jobs]


def test_who_waits_for_a_cancelled_job_is_told_and_nobody_begins_another() -> None:
    executor = Obedient(lambda _one: None)
    with ThreadPoolExecutor(1) as threads, Pool(executor) as pool:
        running = threads.submit(pool.run, placed("a"))
        while not executor.started:
            pass
        pool.cancel()
        with pytest.raises(Cancelled):
            running.result(60)
        with pytest.raises(Cancelled):
            pool.run(placed("b"))


def test_who_waits_is_told_also_where_the_jobs_can_not_be_cancelled() -> None:
    class Stubborn(Obedient):
        def cancel(self) -> None:
            super().cancel()
            raise UserError(Problem(where="--on slurm", cause="scancel ended with 1"))

    executor, told = Stubborn(lambda _one: None), Queue[BaseException]()
    pool = Pool(executor)

    def wait() -> None:
        try:
            pool.run(placed("a"))
        except Cancelled as error:
            told.put(error)

    Thread(target=wait, daemon=True).start()
    while not executor.started:
        pass
    with pytest.raises(UserError, match="scancel"):
        pool.cancel()
    assert isinstance(told.get(timeout=60), Cancelled)


def test_what_an_executor_raises_reaches_who_waits() -> None:
    def gone(_one: Placed) -> Ended:
        raise UserError(Problem(where="--on slurm", cause="squeue ended with 1"))

    with Pool(Obedient(gone)) as pool, pytest.raises(UserError, match="squeue"):
        pool.run(placed("a"))
