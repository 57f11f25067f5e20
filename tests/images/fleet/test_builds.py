"""Builds on workers: what they are told, what counts of their answer. Real workers are in tests/integration."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from images.engine.failures import Cancelled
from images.errors import Problem, UserError
from images.fleet.builds import description, sets, submitting
from images.fleet.builds.model import BuildJob, BuildResult, ToldProblem
from images.fleet.builds.pool import Pool
from images.fleet.builds.sets import Parent, SetOptions
from images.fleet.builds.submitting import Submission
from images.fleet.config import ONE_MACHINE
from images.fleet.executors.executor import Ended, Placed
from images.fleet.model import WorkerInfo
from images.locking import lock_file
from images.nightly import judge as nightly_judge
from images.planning import plan
from images.registry.reference import Repository
from tests.support import fleet_records
from tests.support.fleet_records import claim, claims, installed
from tests.support.nightly_samples import CONTROL, at
from tests.support.sources import SOURCES
from validate.claims import ClaimSet, Tier
from validate.judging import Status

NAME = "cu126-torch27"
DIGEST = "sha256:" + "ab" * 32
PIP = claims(claim("pip"))


def job(**more: Any) -> BuildJob:
    return BuildJob(**{"image": NAME, "context": "c" * 64, "tiers": (Tier.STATIC,), **more})


def result(one: BuildJob, held_to: ClaimSet = PIP, digest: str = DIGEST, **more: Any) -> BuildResult:
    """Of a worker that measured pip 25.0."""
    about = fleet_records.job(0, held_to, digest=digest)
    now = datetime.now(UTC)
    given: dict[str, Any] = {
        "key": one.key,
        "run": "x",
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

    def cancel(self) -> None:
        self.cancelled = True
        self.going.clear()


def submission(executor: Obedient) -> Submission:
    return Submission.new(ONE_MACHINE, executor, lambda _key, _text: None)


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
        submission(Obedient(None)).placed(job(platform="linux/arm64"))


# --- what counts of its answer ----------------------------------------------------------------------------------------


def test_each_result_comes_with_its_job_and_one_that_was_lost_stops_no_other() -> None:
    good, bad, lost = job(label="a"), job(label="b"), job(label="c")
    told = (ToldProblem(where="step 3", cause="no space", then="make room"),)
    answers = {
        good.key: Ended(key=good.key, built=result(good)),
        bad.key: Ended(key=bad.key, built=result(bad, digest="", problems=told)),
        lost.key: Ended(key=lost.key, cause="the node died"),
    }
    executor = Obedient(lambda placed: answers[placed.key])
    found = {one.label: what for one, what in submitting.results([good, bad, lost], submission(executor))}
    assert found["a"] == answers[good.key].built and executor.cancelled
    assert str(found["b"]) == "step 3: no space\n    next: make room"
    assert "the node died" in str(found["c"]) and "give the same command again" in str(found["c"])


def test_an_interrupt_cancels_what_was_begun() -> None:
    def interrupted(_placed: Placed) -> Ended:
        raise KeyboardInterrupt

    executor = Obedient(interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(submitting.results([job()], submission(executor)))
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


def test_evidence_of_another_image_is_none(tmp_path: Path) -> None:
    other = result(job(), digest="sha256:" + "cd" * 32)
    with pytest.raises(UserError, match="the evidence is of"):
        submitting.judged(job(), other, PIP, tmp_path)
    with pytest.raises(UserError):
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
    unbuildable = Obedient(lambda one: Ended(key=one.key, built=result(job(), cause="no kernel", problems=told)))
    assert judge_by(unbuildable, tmp_path)(CONTROL, [], "canary").cause == "no kernel"
    for ended in ({"cause": "killed"}, {"built": result(job(), problems=told)}):
        executor = Obedient(lambda one, ended=ended: Ended(key=one.key, **ended))
        with pytest.raises(UserError):
            judge_by(executor, tmp_path)(CONTROL, [], "canary")


def test_a_set_over_an_image_is_judged_by_the_claims_of_this_checkout(tmp_path: Path, written: None) -> None:
    """The worker measured pip alone: what the image is held to beside that is open."""
    parent = Parent(reference=f"a.test/b@{DIGEST}", digest=DIGEST, labels={})
    executor = Obedient(lambda one: Ended(key=one.key, built=result(job())))
    found = judge_by(executor, tmp_path, parents={NAME: parent})(CONTROL, [], "control")
    assert found.overall[Tier.STATIC] is not Status.PASS and len(found.claims) > 20
    told = BuildJob.model_validate_json(executor.started[0].task.job)  # type: ignore[attr-defined]
    assert (told.over, told.over_digest, told.tiers) == (parent.reference, DIGEST, (Tier.STATIC,))
    lock = {path: text.encode() for path, text in told.lock.items()}
    lock_file.write(lock, tmp_path / "locks")
    assert lock_file.read(CONTROL.image, tmp_path / "locks").files == CONTROL.lock.files


def placed(label: str) -> Placed:
    return submission(Obedient(None)).placed(job(label=label))


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


def test_what_an_executor_raises_reaches_who_waits() -> None:
    def gone(_one: Placed) -> Ended:
        raise UserError(Problem(where="--on slurm", cause="squeue ended with 1"))

    with Pool(Obedient(gone)) as pool, pytest.raises(UserError, match="squeue"):
        pool.run(placed("a"))
