"""Builds that are booked and kept: what `--resume` takes over. Killed for real in tests/integration/test_fleet.py."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from images.errors import UserError
from images.fleet import booking
from images.fleet.builds import running
from images.fleet.builds.ledger import BuildLedger
from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.builds.worker import BuildAssignment
from images.fleet.executors.executor import Ended, Placed
from images.fleet.model import FleetRun
from images.fleet.results import ToldProblem
from images.fleet.task import TaskContext
from tests.images.fleet.test_builds import Obedient, built, job, of, result, run_of, submission

NO_SPACE = (ToldProblem(where="step 3", cause="no space", then="make room"),)


class Numbered(Obedient):
    """A cluster that names its jobs."""

    def start(self, jobs: Sequence[Placed]) -> Mapping[str, str]:
        super().start(jobs)
        return {one.key: f"id-{one.key}" for one in jobs}


def answering(**more: Any) -> Numbered:
    """Every job is built."""
    return Numbered(lambda placed: Ended(key=placed.key, result=result(of(placed), **more)))


def killed(folder: Path, *jobs: BuildJob, kept: Sequence[BuildJob] = ()) -> FleetRun:
    """What a submitter leaves that is killed while `kept` are built and the others go on."""
    ledger, left = BuildLedger(folder), run_of(*jobs)
    ledger.note(jobs)
    with ledger.running(left):
        for one in jobs:
            ledger.book(booking.booking(left, one.key, f"id-{one.key}"), one)
    for one in kept:
        ledger.kept(one.key, lambda one=one: result(one))
    return left


def test_two_jobs_with_one_key_ask_for_the_same_in_everything() -> None:
    others = [job(), job(no_cache=True), job(strict=True), job(base="a.test/b@sha256:1"), job(through="a.test/c")]
    assert len({one.key for one in others}) == len(others) and job().key == job().key


def test_a_resumed_run_takes_over_what_is_built_and_watches_what_goes_on(tmp_path: Path) -> None:
    done, going = job(label="a"), job(label="b")
    killed(tmp_path, done, going, kept=[done])
    ledger, executor = BuildLedger(tmp_path), answering()
    resumed = running.resumed(ledger, [done, going], "obedient")
    assert running.without_record(ledger, resumed) == [going.key]
    ends = built(tmp_path, executor, done, going, run_of=resumed)
    assert [one.result for one in ends if isinstance(one.result, BuildResult)] == [
        ledger.record(one.key) for one in (done, going)
    ]
    assert [(one.key, one.cluster_id) for one in executor.started] == [(going.key, f"id-{going.key}")]
    assert [one.ended is not None for one in ledger.runs()] == [True]
    assert not [key for key in ledger.job_keys() if ledger.booked(key)]


def test_without_resume_all_is_built_again_and_what_goes_on_is_not_built_beside_itself(tmp_path: Path) -> None:
    """The result of a job that goes on names the run that began it."""
    done, going = job(label="a"), job(label="b")
    killed(tmp_path, done, going, kept=[done])
    anew = booking.new_run("obedient", [done.key, going.key])

    def answer(placed: Placed) -> Ended:
        run = "x" if placed.cluster_id and placed.key == going.key else anew.id
        return Ended(key=placed.key, result=result(of(placed), run=run))

    executor = Numbered(answer)
    of_anew = replace(submission(executor), run=anew.id)
    ends = built(tmp_path, executor, done, going, run_of=anew, submission=of_anew)
    assert all(isinstance(one.result, BuildResult) for one in ends), ends
    assert {one.key for one in executor.started} == {done.key, going.key}


def test_a_build_that_failed_is_built_again_by_a_resumed_run(tmp_path: Path) -> None:
    (end,) = built(tmp_path, answering(digest="", problems=NO_SPACE), job())
    assert "no space" in str(end.result)
    ledger = BuildLedger(tmp_path)
    assert ledger.record(job().key) is None
    (end,) = built(tmp_path, answering(), job(), run_of=running.resumed(ledger, [job()], "obedient"))
    assert isinstance(end.result, BuildResult)


def test_who_has_nothing_to_take_over_is_told_what_to_do(tmp_path: Path) -> None:
    ledger = BuildLedger(tmp_path)
    with pytest.raises(UserError, match="left these jobs\n    next: without --resume"):
        running.resumed(ledger, [job()], "obedient")
    built(tmp_path, answering(), job())
    with pytest.raises(UserError, match="left these jobs: x has ended"):
        running.resumed(ledger, [job()], "obedient")
    left = killed(tmp_path, job(label="b"))
    with pytest.raises(UserError, match="was on obedient\n    next: add --on obedient"):
        running.resumed(ledger, [job(label="b")], "slurm")
    with ledger.running(left), pytest.raises(UserError, match="x goes on: "):
        running.resumed(ledger, [job(label="b")], "obedient")


def test_what_another_process_builds_into_the_same_folder_is_left_to_it(tmp_path: Path) -> None:
    ledger, other, executor = BuildLedger(tmp_path), booking.new_run("obedient", [job().key]), answering()
    last_week = other.started - timedelta(days=7)
    ledger.kept(job().key, lambda: result(job(), started=last_week, ended=last_week))
    with ledger.running(other):
        ledger.book(booking.booking(other, job().key), job())
        theirs, mine = built(tmp_path, executor, job(), job(label="b"))
    assert "another process builds it" in str(theirs.result) and isinstance(mine.result, BuildResult)
    assert [of(one).label for one in executor.started] == ["b"]
    assert [one.ended for one in ledger.runs()] == [None, None], "the record of last week is not the run's"
    booked = ledger.booked(job().key)
    assert booked and booked.run == other.id


def test_a_run_that_is_interrupted_gives_its_jobs_back_and_keeps_what_was_built(tmp_path: Path) -> None:
    first, second = job(label="a"), job(label="b")
    executor, ledger = answering(), BuildLedger(tmp_path)
    run = running.BuildRun(run_of=run_of(first, second), ledger=ledger, submission=submission(executor), took={})
    with closing(run.ends([first, second])) as ends:
        next(ends)
    assert executor.cancelled and not [key for key in ledger.job_keys() if ledger.booked(key)]
    resumed = running.resumed(ledger, [first, second], "obedient")
    assert running.without_record(ledger, resumed) == [second.key]


def test_a_record_older_than_the_run_is_not_taken_over(tmp_path: Path) -> None:
    ledger, day = BuildLedger(tmp_path), timedelta(days=1)
    now = run_of(job()).started
    old = result(job(), started=now - day, ended=now - day, bytes=7)
    ledger.kept(job().key, lambda: old)
    assert running.without_record(ledger, run_of(job())) == [job().key]
    (end,) = built(tmp_path, answering(), job())
    assert isinstance(end.result, BuildResult) and end.result.bytes == 1


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
    executor = answering()
    telling = replace(submission(executor), say=lambda _key, text: said.append(text))
    jobs = [job(label="a"), job(label="b")]
    took = {job().image: 90.0}
    first, last = built(tmp_path, executor, *jobs, submission=telling, took=took)
    assert said == ["started; takes about 2 min"] * 2
    assert first.left.startswith("; 1 wait or run, about ") and last.left == ""
