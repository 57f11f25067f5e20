"""Builds that are booked and kept: what `--resume` takes over. Killed for real in tests/integration/test_fleet.py."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from images.errors import Problem, UserError
from images.fleet import booking
from images.fleet.builds import running
from images.fleet.builds.ledger import BuildLedger
from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.builds.running import BuildEnd, ElsewhereError
from images.fleet.builds.submitting import UnusableError
from images.fleet.builds.worker import BuildAssignment
from images.fleet.executors.executor import Ended, Placed
from images.fleet.model import Booking, FleetRun
from images.fleet.results import ToldProblem
from images.fleet.task import TaskContext
from tests.images.fleet.test_builds import Obedient, built, job, of, result, result_to, run, run_of, submission

NO_SPACE = (ToldProblem(where="step 3", cause="no space", then="make room"),)
NUMBERS = count(1)
SUBMITTED_BY: dict[str, str] = {}
"""What a job is called on the cluster -> the run that submitted it, and that its result names."""


def submitted(run_id: str) -> str:
    """A new job of the cluster."""
    number = f"id-{next(NUMBERS)}"
    SUBMITTED_BY[number] = run_id
    return number


class Cluster(Obedient):
    """Numbers its jobs. What a dead submitter left goes on, and is watched."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.ids: dict[str, str] = {}

    def start(self, jobs: Sequence[Placed]) -> Mapping[str, str]:
        super().start(jobs)
        self.ids = {one.key: one.cluster_id or submitted(one.task.run) for one in jobs}  # type: ignore[attr-defined]
        return self.ids


def answering(**more: Any) -> Cluster:
    """Every job is built."""

    def answer(placed: Placed) -> Ended:
        by = SUBMITTED_BY[executor.ids[placed.key]]
        return Ended(key=placed.key, result=result_to(placed, **{"run": by, **more}))

    executor = Cluster(answer)
    return executor


def interrupted(_anything: object) -> Any:
    raise KeyboardInterrupt


def killed(folder: Path, *jobs: BuildJob, kept: Sequence[BuildJob] = ()) -> FleetRun:
    """What a submitter leaves that is killed while `kept` are built and the others go on."""
    ledger, left = BuildLedger(folder), run_of(*jobs)
    ledger.note(jobs)
    with ledger.running(left):
        for one in jobs:
            ledger.book(booking.booking(left, one.key, submitted(left.id)), one)
        ledger.note_run(left)
    for one in kept:
        ledger.kept(one.key, lambda one=one: result(one, run=left.id))
    return left


def id_of(folder: Path, one: BuildJob) -> str:
    """What the booking of a job says of the cluster."""
    found = BuildLedger(folder).booked(one.key)
    return found.cluster_id if found else ""


def left_by(folder: Path, *jobs: BuildJob) -> FleetRun:
    return running.left_run(BuildLedger(folder), [one.key for one in jobs], "obedient")


def resumed(folder: Path, *jobs: BuildJob) -> FleetRun:
    """A new run of these jobs, by somebody who resumes."""
    left_by(folder, *jobs)
    return run_of(*jobs)


def built_of(ends: Sequence[BuildEnd]) -> list[BuildJob]:
    return [one.job for one in ends if isinstance(one.result, BuildResult)]


def test_two_jobs_with_one_key_ask_for_the_same_in_everything() -> None:
    others = [job(), job(no_cache=True), job(strict=True), job(base="a.test/b@sha256:1"), job(through="a.test/c")]
    assert len({one.key for one in others}) == len(others) and job().key == job().key


def test_a_resumed_run_takes_over_what_is_built_and_watches_what_goes_on(tmp_path: Path) -> None:
    done, going = job(label="a"), job(label="b")
    killed(tmp_path, done, going, kept=[done])
    ledger, executor, number = BuildLedger(tmp_path), answering(), id_of(tmp_path, going)
    ends = built(tmp_path, executor, done, going, goes_on=resumed(tmp_path, done, going))
    assert [one.result for one in ends] == [ledger.record(one.key) for one in (done, going)]
    assert [(one.key, one.cluster_id) for one in executor.started] == [(going.key, number)]
    assert [one.ended is not None for one in ledger.runs()] == [True, True], "the killed one, too"
    assert not [key for key in ledger.job_keys() if ledger.booked(key)]


def test_without_resume_all_is_built_again_and_what_goes_on_is_not_built_beside_itself(tmp_path: Path) -> None:
    """The result of a job that goes on names the run that began it."""
    done, going = job(label="a"), job(label="b")
    killed(tmp_path, done, going, kept=[done])
    executor, number = answering(), id_of(tmp_path, going)
    assert built_of(built(tmp_path, executor, done, going)) == [done, going]
    assert [one.key for one in executor.started] == [done.key, going.key] and executor.ids[going.key] == number


def test_an_ended_run_of_the_same_job_hides_no_run_that_was_killed(tmp_path: Path) -> None:
    shared, own = job(label="a"), job(label="b")
    left = killed(tmp_path, shared, own)
    assert built(tmp_path, answering(), shared) and BuildLedger(tmp_path).runs()[-1].ended
    assert left_by(tmp_path, shared, own).id == left.id
    executor, number = answering(), id_of(tmp_path, own)
    assert built_of(built(tmp_path, executor, shared, own, goes_on=resumed(tmp_path, shared, own))) == [shared, own]
    assert [one.cluster_id for one in executor.started] == [number]


def test_jobs_of_two_killed_runs_are_taken_over_by_one(tmp_path: Path) -> None:
    first, second = job(label="a"), job(label="b")
    killed(tmp_path, first, kept=[first])
    newest = killed(tmp_path, second)
    executor, goes_on = answering(), resumed(tmp_path, first, second)
    assert left_by(tmp_path, first, second).id == newest.id
    assert built_of(built(tmp_path, executor, first, second, goes_on=goes_on)) == [first, second]
    assert [one.key for one in executor.started] == [second.key], "the other has a record"


def test_resume_builds_nothing_again_that_an_ended_run_built(tmp_path: Path) -> None:
    first, second = job(label="a"), job(label="b")
    assert built_of(built(tmp_path, answering(), first)) == [first]
    killed(tmp_path, second)
    executor, goes_on = answering(), resumed(tmp_path, first, second)
    assert built_of(built(tmp_path, executor, first, second, goes_on=goes_on)) == [first, second]
    assert [one.key for one in executor.started] == [second.key]


def test_a_new_run_watches_nothing_of_a_dead_run_that_has_a_record(tmp_path: Path) -> None:
    """Slurm lists such a job for a while: its result is the build before."""
    killed(tmp_path, job(), kept=[job()])
    executor = answering()
    assert built_of(built(tmp_path, executor, job())) == [job()]
    assert [one.cluster_id for one in executor.started] == [""]


def test_a_record_that_was_made_since_the_command_began_is_not_built_again(tmp_path: Path) -> None:
    executor, new = answering(), run(tmp_path, answering(), job())
    BuildLedger(tmp_path).kept(job().key, lambda: result(job(), bytes=7))
    new = replace(new, submission=submission(executor, new.run_of.id))
    (end,) = new.outcomes([job()], lambda end: end)
    assert isinstance(end, BuildEnd) and isinstance(end.result, BuildResult) and end.result.bytes == 7
    assert not executor.started


# --- killed, interrupted or refused on the way ------------------------------------------------------------------------


def test_who_is_killed_while_a_record_is_judged_leaves_every_job_of_the_cluster_known(tmp_path: Path) -> None:
    """Judging pulls many gigabytes: what is to be built is submitted or watched by then."""
    done, going, lost = job(label="a"), job(label="b"), job(label="c")
    killed(tmp_path / "first", done, going, kept=[done])
    number, executor = id_of(tmp_path / "first", going), answering()

    def judge(end: BuildEnd) -> BuildEnd:
        if end.job == done:
            shutil.copytree(tmp_path / "first", tmp_path / "killed")  # nobody holds its locks
        return end

    goes_on = resumed(tmp_path / "first", done, going, lost)
    run(tmp_path / "first", executor, done, going, lost, goes_on=goes_on).outcomes([done, going, lost], judge)
    last = answering()
    again = built(tmp_path / "killed", last, done, going, lost, goes_on=resumed(tmp_path / "killed", done, going, lost))
    assert built_of(again) == [done, going, lost]
    assert last.ids == {going.key: number, lost.key: executor.ids[lost.key]}


def test_an_interrupt_while_a_record_is_judged_cancels_what_a_dead_run_left(tmp_path: Path) -> None:
    done, going = job(label="a"), job(label="b")
    killed(tmp_path, done, going, kept=[done])
    executor, number = answering(), id_of(tmp_path, going)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, executor, goes_on=resumed(tmp_path, done, going)).outcomes([done, going], interrupted)
    assert executor.cancelled and executor.ids[going.key] == number and not id_of(tmp_path, going)


def test_what_could_not_be_watched_is_not_forgotten(tmp_path: Path) -> None:
    """fleet.yaml lacks machines for one job; then sbatch refuses another."""

    class Refusing(Cluster):
        def start(self, _jobs: Sequence[Placed]) -> Mapping[str, str]:
            raise UserError(Problem(where="--on slurm", cause="sbatch refuses"))

    going, elsewhere = job(), job(platform="linux/arm64")
    killed(tmp_path, going)
    number = id_of(tmp_path, going)
    with pytest.raises(UserError, match="no machine of the fleet"):
        built(tmp_path, answering(), going, elsewhere)
    with pytest.raises(UserError, match="sbatch refuses"):
        built(tmp_path, Refusing(None), going)
    assert number and id_of(tmp_path, going) == number


def test_a_job_that_was_taken_over_twice_counts_for_the_run_that_submitted_it(tmp_path: Path) -> None:
    going = job()
    killed(tmp_path / "first", going)
    number = id_of(tmp_path / "first", going)

    def die(_placed: Placed) -> Ended:
        shutil.copytree(tmp_path / "first", tmp_path / "killed")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(tmp_path / "first", Cluster(die), going)
    executor = answering()
    (end,) = built(tmp_path / "killed", executor, going, goes_on=resumed(tmp_path / "killed", going))
    assert isinstance(end.result, BuildResult), end.result
    assert executor.ids == {going.key: number}


def test_who_is_killed_while_jobs_are_booked_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A noted run has all its jobs booked, and older records put aside: those that are there are of it."""
    first, second = job(label="a"), job(label="b")
    ledger = BuildLedger(tmp_path)
    ledger.kept(second.key, lambda: result(second))
    book = BuildLedger.book

    def dies(self: BuildLedger, asked: Booking, one: BuildJob, **more: Any) -> Booking:
        return book(self, asked, one, **more) if one == first else interrupted(one)

    monkeypatch.setattr(BuildLedger, "book", dies)
    with pytest.raises(KeyboardInterrupt):
        built(tmp_path, answering(), first, second)
    with pytest.raises(UserError, match="left these jobs"):
        resumed(tmp_path, first, second)


def test_a_run_that_is_interrupted_gives_its_jobs_back_and_keeps_what_was_built(tmp_path: Path) -> None:
    first, second = job(label="a"), job(label="b")
    executor, ledger = answering(), BuildLedger(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, executor, first, second).outcomes([first, second], interrupted)
    assert executor.cancelled and not [key for key in ledger.job_keys() if ledger.booked(key)]
    assert [bool(ledger.record(one.key)) for one in (first, second)] == [True, False]
    assert left_by(tmp_path, first, second)


# --- when a run has ended ---------------------------------------------------------------------------------------------


def test_a_build_that_failed_is_built_again_by_a_resumed_run(tmp_path: Path) -> None:
    (end,) = built(tmp_path, answering(digest="", problems=NO_SPACE), job())
    assert "no space" in str(end.result)
    assert BuildLedger(tmp_path).record(job().key) is None
    (end,) = built(tmp_path, answering(), job(), goes_on=resumed(tmp_path, job()))
    assert isinstance(end.result, BuildResult)


def test_what_could_not_be_judged_is_kept_and_judged_by_a_resumed_run(tmp_path: Path) -> None:
    """The registry was down for a minute."""
    down = UserError(Problem(where="a.test", cause="does not answer"))
    assert run(tmp_path, answering(), job()).outcomes([job()], lambda _end: down) == [down]
    executor = answering()
    assert built_of(built(tmp_path, executor, job(), goes_on=resumed(tmp_path, job()))) == [job()]
    assert not executor.started and all(one.ended for one in BuildLedger(tmp_path).runs())


def test_a_record_of_no_use_is_put_aside_and_built_again_by_a_resumed_run(tmp_path: Path) -> None:
    gone = UnusableError(Problem(where="a.test", cause="is not there"))
    assert run(tmp_path, answering(), job()).outcomes([job()], lambda _end: gone) == [gone]
    executor = answering()
    assert built_of(built(tmp_path, executor, job(), goes_on=resumed(tmp_path, job()))) == [job()]
    assert len(executor.started) == 1 and all(one.ended for one in BuildLedger(tmp_path).runs())


def test_a_record_is_not_taken_for_judged_because_the_one_before_it_was(tmp_path: Path) -> None:
    built(tmp_path, answering(), job())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, answering(), job()).outcomes([job()], interrupted)
    executor = answering()
    assert built_of(built(tmp_path, executor, job(), goes_on=resumed(tmp_path, job()))) == [job()]
    assert not executor.started, "it is built, and was to be judged"


def test_who_is_killed_while_a_record_is_put_aside_has_no_later_one_taken_for_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(tmp_path, answering(), job())
    ledger, renamed, rename = BuildLedger(tmp_path), list[Path](), Path.rename

    def dies(self: Path, target: Path) -> Path:
        renamed.append(self)
        return rename(self, target) if len(renamed) == 1 else interrupted(self)

    monkeypatch.setattr(Path, "rename", dies)
    with pytest.raises(KeyboardInterrupt):
        ledger.put_aside(job().key)
    ledger.kept(job().key, lambda: result(job()))
    assert len(renamed) == 2 and ledger.record(job().key) and not ledger.done(job().key)


def test_a_run_that_is_resumed_in_parts_ends_with_the_last(tmp_path: Path) -> None:
    first, second = job(label="a"), job(label="b")
    left, ledger = killed(tmp_path, first, second), BuildLedger(tmp_path)
    built(tmp_path, answering(), first, goes_on=resumed(tmp_path, first))
    assert [one.ended is None for one in ledger.runs()] == [True, False]
    with pytest.raises(UserError, match="left these jobs: 1 of 1 judged"):
        resumed(tmp_path, first)
    assert left_by(tmp_path, first, second).id == left.id
    built(tmp_path, answering(), second)  # without --resume
    assert all(one.ended for one in ledger.runs())
    assert not [key for key in ledger.job_keys() if ledger.booked(key)]


def test_who_has_nothing_to_take_over_is_told_what_to_do(tmp_path: Path) -> None:
    ledger = BuildLedger(tmp_path)
    with pytest.raises(UserError, match="left these jobs\n    next: without --resume") as told:
        resumed(tmp_path, job())
    assert told.value.code == 2
    built(tmp_path, answering(), job())
    with pytest.raises(UserError, match="left these jobs: 1 of 2 judged"):
        resumed(tmp_path, job(), job(label="b"))
    ledger.put_aside(job().key)  # as a new run does, which is then killed while it books
    with pytest.raises(UserError, match="left these jobs\n"):
        resumed(tmp_path, job(), job(label="b"))
    built(tmp_path, answering(), job())
    left = killed(tmp_path, job(label="b"))
    with pytest.raises(UserError, match="was on obedient\n    next: add --on obedient"):
        running.left_run(ledger, [job(label="b").key], "slurm")
    with ledger.running(left), pytest.raises(UserError, match=f"{left.id} goes on: ") as told:
        resumed(tmp_path, job(label="b"))
    assert told.value.code == 1, "the same command helps later"


def test_no_job_that_another_cluster_may_still_run_is_forgotten(tmp_path: Path) -> None:
    """The newest run was here, and an older one elsewhere left one of the jobs."""
    elsewhere, here, ledger = job(label="a"), job(label="b"), BuildLedger(tmp_path)
    older = run_of(elsewhere).model_copy(update={"executor": "slurm"})
    with ledger.running(older):
        ledger.book(booking.booking(older, elsewhere.key, "7"), elsewhere)
        ledger.note_run(older)
    killed(tmp_path, here)
    with pytest.raises(UserError, match=f"{older.id} was on slurm\n    next: add --on slurm"):
        resumed(tmp_path, elsewhere, here)
    with ledger.running(older):
        assert resumed(tmp_path, elsewhere, here), "a living process has it"
    assert resumed(tmp_path, here)


def test_of_two_who_resume_at_once_each_has_what_it_took(tmp_path: Path) -> None:
    """Both have looked before either went on. The first takes one of the jobs, and its life is not the other job's."""
    first, second = job(label="a"), job(label="b")
    killed(tmp_path, first, second)
    one, two = resumed(tmp_path, first), resumed(tmp_path, first, second)
    theirs: list[BuildEnd] = []

    def judge(end: BuildEnd) -> BuildEnd:
        theirs.extend(built(tmp_path, answering(), first, second, goes_on=two))
        return end

    assert built_of(run(tmp_path, answering(), first, goes_on=one).outcomes([first], judge)) == [first]  # type: ignore[arg-type]
    assert [type(end.result) for end in theirs] == [ElsewhereError, BuildResult]
    assert all(one.ended for one in BuildLedger(tmp_path).runs())


# --- other processes, other clocks ------------------------------------------------------------------------------------


def test_what_another_process_builds_into_the_same_folder_is_left_to_it(tmp_path: Path) -> None:
    ledger, other, executor = BuildLedger(tmp_path), run_of(job()), answering()
    with ledger.running(other):
        ledger.book(booking.booking(other, job().key), job())
        ledger.kept(job().key, lambda: result(job()))
        theirs, mine = built(tmp_path, executor, job(), job(label="b"))
    assert "that process names it there; if it fails or was killed, give this command again with --resume" in str(
        theirs.result
    )
    assert isinstance(mine.result, BuildResult) and [of(one).label for one in executor.started] == ["b"]
    booked = ledger.booked(job().key)
    assert booked and booked.run == other.id
    assert [one.ended for one in ledger.runs()] == [None], "the other one's record was not judged here"
    goes_on = resumed(tmp_path, job(), job(label="b"))
    assert built_of(built(tmp_path, answering(), job(), job(label="b"), goes_on=goes_on)) == [job(), job(label="b")]


@pytest.mark.parametrize("clock", [-7, 7])
def test_a_new_run_takes_over_no_record_whatever_the_clock_of_its_worker_says(tmp_path: Path, clock: int) -> None:
    then = datetime.now(UTC) + timedelta(days=clock)
    BuildLedger(tmp_path).kept(job().key, lambda: result(job(), started=then, ended=then, bytes=7))
    (end,) = built(tmp_path, answering(), job())
    assert isinstance(end.result, BuildResult) and end.result.bytes == 1


def test_a_resumed_run_takes_over_a_record_whatever_the_clock_of_its_worker_says(tmp_path: Path) -> None:
    killed(tmp_path, job())
    then = datetime.now(UTC) - timedelta(days=7)
    BuildLedger(tmp_path).kept(job().key, lambda: result(job(), started=then, ended=then, bytes=7))
    (end,) = built(tmp_path, answering(), job(), goes_on=resumed(tmp_path, job()))
    assert isinstance(end.result, BuildResult) and end.result.bytes == 7


def test_a_worker_keeps_what_it_built_and_a_second_one_does_not_build_it_again(tmp_path: Path) -> None:
    built_by: list[str] = []

    class Quick(BuildAssignment):
        def perform(self, context: TaskContext) -> BuildResult:
            built_by.append(context.id)
            return result(job())

    task = Quick(job=job().model_dump_json(), run="x", executor="slurm", matrix="", ledger=str(tmp_path))
    first, second = (task.perform_and_keep(TaskContext(id=number)) for number in "12")
    assert built_by == ["1"] and first == second == BuildLedger(tmp_path).record(job().key)
    assert task.elsewhere().ledger == "", "a machine of Ray's does not see it"


def test_a_worker_keeps_no_failure(tmp_path: Path) -> None:
    """Its submitter was killed, and a resumed run builds it again."""
    ledger = BuildLedger(tmp_path)
    told = ledger.kept(job().key, lambda: result(job(), digest="", problems=NO_SPACE))
    assert told.problems == NO_SPACE and ledger.record(job().key) is None
    assert ledger.kept(job().key, lambda: result(job())) == ledger.record(job().key)


def test_the_other_jobs_are_told_with_the_time_that_they_may_take(tmp_path: Path) -> None:
    said: list[str] = []
    executor, jobs = answering(), [job(label="a"), job(label="b")]
    new = run_of(*jobs)
    telling = replace(submission(executor, new.id), say=lambda _key, text: said.append(text))
    first, last = built(tmp_path, executor, *jobs, goes_on=new, submission=telling, took={job().image: 90.0})
    assert said == ["started; takes about 2 min"] * 2
    assert first.left.startswith("; 1 wait or run, about ") and last.left == ""
