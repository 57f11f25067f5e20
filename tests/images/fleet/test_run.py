"""A run from booking to outcome, with an executor that does as it is told; the real ones are in tests/integration."""

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from images.errors import Problem, UserError
from images.fleet import booking, run
from images.fleet.config import ONE_MACHINE
from images.fleet.executors.executor import Ended, Placed
from images.fleet.ledger import Ledger
from images.fleet.model import Booking, FleetRecord, FleetRun, Job, Judged, WorkerInfo
from images.fleet.run import RunOptions
from images.site import records
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import judge

NAME = "cu126-torch27"
CLAIMS = ClaimSet(
    image=NAME, claims=(Claim(id="S1", subject="pip", tier=Tier.STATIC, probe="static.x", statement="x"),)
)


def job(number: int) -> Job:
    digest = "sha256:" + f"{number:02x}" * 32
    claims = {
        "image": NAME,
        "claims": [{"id": "S1", "subject": "pip", "tier": "static", "probe": "static.x", "statement": "x"}],
    }
    return Job(image=NAME, digest=digest, reference=f"a.test/b@{digest}", tiers=(Tier.STATIC,), claims=claims)


def judged(one: Job, claims: ClaimSet = CLAIMS, digest: str = "") -> Judged:
    measurement = Measurement(subject="pip", seconds=0.1, evidence={"error": "x"})
    record = Record(probe="static.x", outcome=Outcome.COMPLETED, seconds=1, measurements=(measurement,))
    now = datetime.now(UTC)
    host = {"date": now.isoformat()}
    evidence = Evidence(image=NAME, digest=digest or one.digest, records=(record,), host=host, claims=claims.claims)
    line = records.line_of(evidence, judge(claims, evidence), "fleet")
    worker = WorkerInfo(executor="obedient", node="n1")
    return Judged(
        record=FleetRecord(key=one.key, run="x", worker=worker, started=now, ended=now, line=line),
        evidence=evidence.dumps(),
    )


class Obedient:
    """Ends each job as it was told; a job it was told nothing of is interrupted."""

    name = "obedient"

    def __init__(self, answers: Mapping[str, Ended]) -> None:
        self.answers, self.started, self.cancelled = answers, list[str](), False

    def start(self, jobs: Sequence[Placed]) -> Mapping[str, str]:
        self.started += [one.key for one in jobs]
        return {one.key: f"id-{number}" for number, one in enumerate(jobs)}

    def ended(self) -> Iterator[Ended]:
        for key in self.started:
            if key not in self.answers:
                raise KeyboardInterrupt
            yield self.answers[key]

    def states(self) -> Mapping[str, str]:
        return {}

    def running(self) -> Mapping[str, float]:
        return {}

    def cancel(self) -> None:
        self.cancelled = True


def go(
    folder: Path, executor: Obedient, *jobs: Job, goes_on: FleetRun | None = None, **more: Any
) -> tuple[run.Outcome, ...]:
    placed = {ONE_MACHINE.plain: list(jobs)}
    ledger = Ledger(folder)
    options = RunOptions(
        fleet=ONE_MACHINE,
        ledger=ledger,
        executor=executor,
        say=lambda _key, _text: None,
        outdated={} if goes_on else ledger.records_of(one.key for one in jobs),
        **more,
    )
    return run.run(goes_on or booking.new_run("obedient", [one.key for one in jobs]), placed, options)


def test_what_is_judged_has_a_record_and_what_is_lost_a_cause(tmp_path: Path) -> None:
    good, lost = job(1), job(2)
    answers = {good.key: Ended(key=good.key, judged=judged(good)), lost.key: Ended(key=lost.key, cause="node died")}
    outcomes = {one.job.key: one for one in go(tmp_path, Obedient(answers), good, lost)}
    assert outcomes[good.key].verdict and outcomes[lost.key].cause == "node died"
    ledger = Ledger(tmp_path)
    failure = ledger.failure(lost.key)
    assert failure and failure.cause == "node died" and ledger.record(lost.key) is None
    assert not [key for key in ledger.job_keys() if ledger.booked(key)]
    (noted,) = ledger.runs()
    assert noted.ended is None, "--resume judges what was lost"


def test_a_run_whose_jobs_all_have_records_has_ended(tmp_path: Path) -> None:
    good = job(1)
    go(tmp_path, Obedient({good.key: Ended(key=good.key, judged=judged(good))}), good)
    (noted,) = Ledger(tmp_path).runs()
    assert noted.ended is not None


def test_a_run_ends_with_its_last_job_whoever_judged_it(tmp_path: Path) -> None:
    one, two, three, ledger = job(1), job(2), job(3), Ledger(tmp_path)
    left = booking.new_run("obedient", [one.key, two.key])
    alive = booking.new_run("obedient", [two.key])
    with ledger.running(left):
        ledger.book(booking.booking(left, one.key), one)
        ledger.note_run(left)
    given = judged(one)
    ledger.commit(given)
    ledger.note_judged(given.record)
    answers = {each.key: Ended(key=each.key, judged=judged(each)) for each in (two, three)}

    def ended() -> set[str]:
        return {each.id for each in ledger.runs() if each.ended}

    go(tmp_path, Obedient(answers), three)
    assert left.id not in ended() and len(ended()) == 1
    with ledger.running(alive):
        ledger.note_run(alive)
        (tmp_path / "runs" / "damaged.json").write_text("{}")
        go(tmp_path, Obedient(answers), two)
        (tmp_path / "runs" / "damaged.json").unlink()
        assert left.id in ended() and alive.id not in ended(), "that one ends itself"
    assert ledger.booked(one.key) is None


def test_an_interrupt_cancels_and_gives_every_job_back(tmp_path: Path) -> None:
    executor = Obedient({})
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, executor, job(1), job(2))
    ledger = Ledger(tmp_path)
    assert executor.cancelled and not [key for key in ledger.job_keys() if ledger.booked(key)]


def test_a_worker_that_kept_its_record_before_it_was_lost_has_judged(tmp_path: Path) -> None:
    one = job(1)

    class Late(Obedient):
        def ended(self) -> Iterator[Ended]:
            Ledger(tmp_path).commit(judged(one))
            yield Ended(key=one.key, cause="the job was killed")

    (outcome,) = go(tmp_path, Late({}), one)
    assert outcome.verdict is not None


@pytest.mark.parametrize("clock", [-7, 7])
def test_a_new_run_judges_what_has_a_record_whatever_the_clock_of_its_worker_says(tmp_path: Path, clock: int) -> None:
    one, then = job(1), datetime.now(UTC) + timedelta(days=clock)
    before = judged(one)
    Ledger(tmp_path).commit(replace(before, record=before.record.model_copy(update={"ended": then})))
    executor = Obedient({one.key: Ended(key=one.key, judged=judged(one))})
    (outcome,) = go(tmp_path, executor, one)
    assert outcome.verdict and executor.started == [one.key] and list(tmp_path.rglob("earlier"))


def test_what_another_judged_since_the_plan_is_not_judged_again(tmp_path: Path) -> None:
    one, ledger, executor = job(1), Ledger(tmp_path), Obedient({})
    with ledger.judging(one.key):
        ledger.commit(judged(one))
    options = RunOptions(fleet=ONE_MACHINE, ledger=ledger, executor=executor, say=lambda _key, _text: None)
    (outcome,) = run.run(booking.new_run("obedient", [one.key]), {ONE_MACHINE.plain: [one]}, options)
    assert outcome.verdict and outcome.record == ledger.record(one.key)


def test_what_a_dead_run_left_on_the_cluster_is_known_until_it_is_watched(tmp_path: Path) -> None:
    class Refusing(Obedient):
        def start(self, _jobs: Sequence[Placed]) -> Mapping[str, str]:
            raise UserError(Problem(where="--on slurm", cause="sbatch refuses"))

    one, ledger, left = job(1), Ledger(tmp_path), booking.new_run("obedient", [job(1).key])
    with ledger.running(left):
        ledger.book(booking.booking(left, one.key, "7"), one)
    with pytest.raises(UserError, match="sbatch refuses"):
        go(tmp_path, Refusing({}), one)
    found = ledger.booked(one.key)
    assert found and (found.cluster_id, found.submitted_by) == ("7", left.id)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, Obedient({}), one)
    assert ledger.booked(one.key) is None, "cancelled, as it was watched"


def test_a_resumed_run_hands_its_jobs_over_before_it_judges_a_record(tmp_path: Path) -> None:
    done, lost = job(1), job(2)
    ledger, left = Ledger(tmp_path), booking.new_run("obedient", [done.key, lost.key])
    with ledger.running(left):
        ledger.note_run(left)
    ledger.commit(judged(done))
    executor, started = Obedient({lost.key: Ended(key=lost.key, judged=judged(lost))}), list[list[str]]()
    go(tmp_path, executor, done, lost, goes_on=left, keep=lambda _outcome: started.append(list(executor.started)))
    assert started == [[lost.key], [lost.key]]


def test_a_workers_own_claims_do_not_count(tmp_path: Path) -> None:
    """Evidence for no claim would be PASS of nothing: the job's claims are judged."""
    one = job(1)
    nothing = judged(one, ClaimSet(image=NAME, claims=()))
    (outcome,) = go(tmp_path, Obedient({one.key: Ended(key=one.key, judged=nothing)}), one)
    assert outcome.verdict and [str(found.status) for found in outcome.verdict.claims] == ["FAIL"]


def test_evidence_of_another_image_is_a_failure_of_its_job_alone(tmp_path: Path) -> None:
    bad, good = job(1), job(2)
    other = judged(bad, digest="sha256:" + "9" * 64)
    answers = {bad.key: Ended(key=bad.key, judged=other), good.key: Ended(key=good.key, judged=judged(good))}
    outcomes = {one.job.key: one for one in go(tmp_path, Obedient(answers), bad, good)}
    assert "the evidence is of" in outcomes[bad.key].cause and outcomes[good.key].verdict
    ledger = Ledger(tmp_path)
    failure = ledger.failure(bad.key)
    assert failure and failure.cause == outcomes[bad.key].cause
    assert ledger.record(bad.key) is None, "--resume judges it again"


def test_a_worker_that_leaves_out_a_claim_of_the_gpus_gives_no_verdict(tmp_path: Path) -> None:
    """The worker writes these claims, for its GPUs; what the plan requires must be among them."""
    one = job(1).model_copy(update={"tiers": (Tier.GPU,), "arch": "9.0", "required": ("G0 device",)})
    nothing = judged(one, ClaimSet(image=NAME, claims=()))
    (outcome,) = go(tmp_path, Obedient({one.key: Ended(key=one.key, judged=nothing)}), one)
    assert outcome.verdict is None and "did not judge G0 device" in outcome.cause
    device = Claim(id="G0", subject="device", tier=Tier.GPU, probe="static.x", statement="x")
    whole = judged(one, ClaimSet(image=NAME, claims=(device,)))
    (outcome,) = go(tmp_path, Obedient({one.key: Ended(key=one.key, judged=whole)}), one)
    assert outcome.verdict is not None


def test_each_outcome_is_kept_before_the_next_job_ends(tmp_path: Path) -> None:
    """Whoever interrupts a long run has the reports of what was judged."""
    one, two = job(1), job(2)
    kept: list[str] = []
    executor = Obedient({one.key: Ended(key=one.key, judged=judged(one))})
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, executor, one, two, keep=lambda outcome: kept.append(outcome.job.key))
    assert kept == [one.key]


def test_what_each_job_is_about_is_there_before_the_first_is_booked(tmp_path: Path) -> None:
    """A submitter that is killed while it books leaves nothing that --resume can't read."""
    one, two = job(1), job(2)

    class Killed(Ledger):
        def book(self, _booking: Booking, _job: Job, *, resumes: bool = False) -> Booking:
            raise KeyboardInterrupt

    options = RunOptions(
        fleet=ONE_MACHINE, ledger=Killed(tmp_path), executor=Obedient({}), say=lambda _key, _text: None
    )
    placed = {ONE_MACHINE.plain: [one, two]}
    with pytest.raises(KeyboardInterrupt):
        run.run(booking.new_run("obedient", [one.key, two.key]), placed, options)
    assert [Ledger(tmp_path).job(key) for key in (one.key, two.key)] == [one, two]


def test_workers_here_take_the_engine_that_was_named(tmp_path: Path) -> None:
    one, placed = job(1), list[Placed]()

    class Watched(Obedient):
        def start(self, jobs: Sequence[Placed]) -> Mapping[str, str]:
            placed.extend(jobs)
            return super().start(jobs)

    go(tmp_path, Watched({one.key: Ended(key=one.key, judged=judged(one))}), one, engine="unix:///x")
    assert [each.task.engine for each in placed] == ["unix:///x"]


def test_a_record_is_kept_under_the_lock_that_its_worker_would_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, held = job(1), []
    commit = Ledger.commit

    def watched(ledger: Ledger, judged: Judged) -> bool:
        with (ledger.pair(one.key) / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(judged.record.key)
        return commit(ledger, judged)

    monkeypatch.setattr(Ledger, "commit", watched)
    go(tmp_path, Obedient({one.key: Ended(key=one.key, judged=judged(one))}), one)
    assert held == [one.key]
