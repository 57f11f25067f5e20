"""`fleet run`: what it ends with, and what `--resume` goes on with. The executor does as it is told."""

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from images import cli
from images.commands import executors
from images.errors import UserError
from images.fleet import booking, gather, run
from images.fleet.config import ONE_MACHINE
from images.fleet.executors.executor import Ended
from images.fleet.gather import Located
from images.fleet.ledger import Ledger
from images.fleet.model import Booking, FleetRecord, FleetRun, Job
from images.fleet.planning import FleetImage
from images.fleet.run import RunOptions
from tests.images.fleet.test_run import Obedient
from tests.support import commands
from tests.support.fleet_records import NAME, claim, claims, installed, job, judged

PIP = claims(claim("pip"))
NOW = datetime(2026, 11, 22, tzinfo=UTC)


def call(folder: Path, *arguments: str, action: str = "run") -> Result:
    """Raises UserError as the verb does."""
    file = folder / "fleet.yaml"
    file.write_text("workers: {cpu: {}}\n")
    words = ["fleet", action, *arguments, "--fleet", str(file), "--out", str(folder)]
    return CliRunner().invoke(cli.app, words, catch_exceptions=False)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Obedient:
    """In the place of this machine's engine."""
    made = Obedient({})
    monkeypatch.setattr(executors, "LocalExecutor", lambda: made)
    monkeypatch.setattr(executors, "local_engine", lambda _url: nullcontext(None))
    return made


def note(ledger: Ledger, word: str, *jobs: Job, days: int, known: bool = True, on: str = "local") -> FleetRun:
    """A run that was killed."""
    keys = tuple(one.key for one in jobs)
    if known:
        ledger.note(jobs)
    begun = NOW - timedelta(days=days)
    left = FleetRun(id=word, owner=word, started=begun, executor=on, jobs=keys)
    with ledger.running(left):
        ledger.note_run(left)
    return left


def answer(executor: Obedient, *jobs: Job) -> None:
    executor.answers = {one.key: Ended(key=one.key, judged=judged(one, PIP, pip=installed())) for one in jobs}


def test_resume_ends_a_run_with_nothing_left_and_goes_on_with_an_older_one(tmp_path: Path, executor: Obedient) -> None:
    ledger, older, newer = Ledger(tmp_path), job(1, PIP), job(2, PIP)
    note(ledger, "older", older, days=2)
    note(ledger, "newer", newer, days=1)
    found = judged(newer, PIP, pip=installed())
    slow_clock = {"ended": NOW - timedelta(days=7)}
    given = found.record.model_copy(update=slow_clock)
    ledger.commit(replace(found, record=given))
    ledger.note_judged(given)
    answer(executor, older)
    assert call(tmp_path, "--resume").exit_code == 0
    assert executor.started == [older.key]
    assert all(one.ended for one in ledger.runs())
    with pytest.raises(UserError, match="left anything to judge") as told:
        call(tmp_path, "--resume")
    assert told.value.code == 2, "as `build --resume`: an option that does not fit"


def test_resume_of_a_run_whose_jobs_were_all_judged_since_ends_it(tmp_path: Path, executor: Obedient) -> None:
    """Slurm's jobs went on after their submitter was killed."""
    ledger, one = Ledger(tmp_path), job(1, PIP)
    left = note(ledger, "one", one, days=1)
    with ledger.running(left):
        ledger.book(booking.booking(left, one.key, "7"), one)
    given = judged(one, PIP, pip=installed())
    ledger.commit(given)
    ledger.note_judged(given.record)
    assert call(tmp_path, "--resume").exit_code == 0
    assert not executor.started and [bool(each.ended) for each in ledger.runs()] == [True]
    assert ledger.booked(one.key) is None


@pytest.mark.parametrize(("version", "status"), [("25.0", 0), ("24.0", 1)])
def test_resume_reports_what_workers_of_a_dead_submitter_recorded(
    tmp_path: Path, executor: Obedient, version: str, status: int
) -> None:
    ledger, one = Ledger(tmp_path), job(1, PIP)
    note(ledger, "one", one, days=1)
    ledger.commit(judged(one, PIP, pip=installed(version)))
    assert call(tmp_path, "--resume").exit_code == status
    assert not executor.started and all(each.ended for each in ledger.runs())
    assert (ledger.pair(one.key) / "verdict.json").exists()
    with pytest.raises(UserError, match="left anything to judge"):
        call(tmp_path, "--resume")


def test_a_record_that_came_after_the_judged_one_is_not_judged_yet(tmp_path: Path) -> None:
    """Somebody took a damaged record away, and a worker brought another."""
    ledger, one = Ledger(tmp_path), job(1, PIP)
    first, later = judged(one, PIP, pip=installed(), days=1), judged(one, PIP, pip=installed())
    ledger.commit(first)
    ledger.note_judged(first.record)
    assert ledger.done(one.key)
    (ledger.pair(one.key) / "record.json").unlink()
    assert not ledger.done(one.key)
    ledger.commit(later)
    assert not ledger.done(one.key)


def test_resume_on_another_executor_forgets_no_job_of_a_cluster(tmp_path: Path, executor: Obedient) -> None:
    """What was left here goes on here, though a newer run was on the cluster."""
    ledger, one, two = Ledger(tmp_path), job(1, PIP), job(2, PIP)
    left = note(ledger, "one", one, days=1, on="slurm")
    with ledger.running(left):
        ledger.book(booking.booking(left, one.key, "7"), one)
    note(ledger, "two", two, days=2)
    answer(executor, two)
    assert call(tmp_path, "--resume").exit_code == 0 and executor.started == [two.key]
    with pytest.raises(UserError, match="--on local: one was on slurm\n    next: add --on slurm") as told:
        call(tmp_path, "--resume")
    booked = ledger.booked(one.key)
    assert told.value.code == 2 and booked and booked.cluster_id == "7" and executor.started == [two.key]


def test_what_another_cluster_got_since_resume_looked_is_left_to_it(
    tmp_path: Path, executor: Obedient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process resumes the same jobs on Slurm in between, and is killed once the first of them is submitted."""
    ledger, one, two, said = Ledger(tmp_path), job(1, PIP), job(2, PIP), list[str]()
    note(ledger, "left", one, two, days=1)
    answer(executor, one, two)
    tell = executors.tell

    def overtaken(key: str, text: str) -> None:
        said.append(text)
        if key == "left":  # nothing is booked yet
            theirs = note(ledger, "theirs", one, two, days=0, on="slurm")
            with ledger.running(theirs):
                ledger.book(booking.booking(theirs, one.key, "7"), one)
                ledger.book(booking.booking(theirs, two.key), two)
        tell(key, text)

    monkeypatch.setattr(executors, "tell", overtaken)
    assert call(tmp_path, "--resume").exit_code == 1 and executor.started == [two.key]
    assert any(text.startswith("is left to theirs, who booked it on slurm") for text in said), said
    booked = ledger.booked(one.key)
    assert booked and (booked.run, booked.cluster_id) == ("theirs", "7")


def test_resume_says_what_another_process_still_judges_and_does_not_end_with_0(
    tmp_path: Path, executor: Obedient
) -> None:
    ledger, one, two = Ledger(tmp_path), job(1, PIP), job(2, PIP)
    note(ledger, "left", one, two, days=2)
    answer(executor, one)
    other = FleetRun(id="other", owner="ann", started=NOW, executor="local", jobs=(two.key,))
    with ledger.running(other):
        ledger.book(booking.booking(other, two.key), two)
        ledger.note_run(other)
        assert call(tmp_path, "--resume").exit_code == 1 and executor.started == [one.key]
        with pytest.raises(UserError, match="other goes on: ann") as told:
            call(tmp_path, "--resume")
        assert told.value.code == 1
    answer(executor, two)
    executor.started.clear()
    assert call(tmp_path, "--resume").exit_code == 0 and executor.started == [two.key]
    assert all(each.ended for each in ledger.runs())


def test_resume_names_what_nobody_knows_any_more_and_ends_nothing(tmp_path: Path, executor: Obedient) -> None:
    ledger, gone = Ledger(tmp_path), job(1, PIP)
    note(ledger, "one", gone, days=1, known=False)
    with pytest.raises(UserError, match=r"job\.json is missing") as told:
        call(tmp_path, "--resume")
    assert told.value.code == 1 and told.value.problems[0].where == gone.key
    assert not executor.started and not [one for one in ledger.runs() if one.ended]


def test_status_names_resume_only_where_it_takes_the_job_over(tmp_path: Path, executor: Obedient) -> None:
    """A run is noted once all its jobs are booked; another one that has the job may be."""
    ledger, one, two = Ledger(tmp_path), job(1, PIP), job(2, PIP)

    class Killed(Ledger):
        def book(self, asked: Booking, one: Job, *, resumes: bool = False) -> Booking:
            if one == two:
                raise KeyboardInterrupt
            return super().book(asked, one, resumes=resumes)

    options = RunOptions(fleet=ONE_MACHINE, ledger=Killed(tmp_path), executor=executor, say=lambda _key, _text: None)
    with pytest.raises(KeyboardInterrupt):
        run.run(booking.new_run("local", [one.key, two.key]), {ONE_MACHINE.plain: [one, two]}, options)

    def told() -> list[tuple[str, str]]:
        rows = json.loads(call(tmp_path, "--json", action="status").output)
        return [(row["state"], row["told"].partition("`")[2].partition("`")[0]) for row in rows]

    assert told() == [("left", "nox -s fleet -- run SELECTOR...")]
    (tmp_path / "runs" / "empty.json").touch()
    assert told() == [("left", "nox -s fleet -- run SELECTOR...")], "a machine that went down leaves such a file"
    (tmp_path / "runs" / "empty.json").unlink()
    with pytest.raises(UserError, match="left anything to judge"):
        call(tmp_path, "--resume")
    note(ledger, "older", one, days=1, on="slurm")
    assert told() == [("left", "nox -s fleet -- run --resume --on slurm")]
    note(ledger, "newer", two, days=0)
    assert told() == [("left", "nox -s fleet -- run --resume --on slurm")], "that one has another job"
    note(ledger, "here", one, days=2)
    assert told() == [("left", "nox -s fleet -- run --resume --on local")], "where it was booked"
    answer(executor, one, two)
    for left in (two, one):
        executor.started.clear()
        assert call(tmp_path, "--resume").exit_code == 0 and executor.started == [left.key]


@pytest.mark.parametrize(("fault", "code"), [("", 0), ("nowhere", 1), ("booked", 1)])
def test_run_ends_with_0_where_everything_asked_for_was_judged(
    tmp_path: Path, executor: Obedient, monkeypatch: pytest.MonkeyPatch, fault: str, code: int
) -> None:
    ledger, one = Ledger(tmp_path), job(1, PIP)
    why_not = "it is nowhere" if fault == "nowhere" else ""
    image = FleetImage(
        name=NAME, digest=one.digest, archs=(), ptx=(), claims=PIP, reference=one.reference, why_not=why_not
    )
    monkeypatch.setattr(gather, "images", lambda *_rest: [Located(planned=image, found=None)])
    answer(executor, one)
    with ledger.running(FleetRun(id="other", owner="ann", started=NOW, executor="local", jobs=(one.key,))):
        if fault == "booked":
            ledger.book(Booking(key=one.key, run="other", owner="ann", since=NOW, executor="local"), one)
        done = call(tmp_path, NAME, "--tier", "static")
    assert done.exit_code == code
    assert ("1 pair" in done.output) is bool(code)
    if not fault:
        assert (ledger.pair(one.key) / "report.md").is_file()
        assert call(tmp_path, NAME, "--tier", "static").exit_code == 0, "fresh by now"


def test_run_judges_again_what_was_judged_too_long_ago(
    tmp_path: Path, executor: Obedient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, one = Ledger(tmp_path), job(1, PIP)
    image = FleetImage(name=NAME, digest=one.digest, archs=(), ptx=(), claims=PIP, reference=one.reference)
    monkeypatch.setattr(gather, "images", lambda *_rest: [Located(planned=image, found=None)])
    old = judged(one, PIP, pip=installed(), days=30)
    ledger.commit(old)
    answer(executor, one)
    assert call(tmp_path, NAME, "--tier", "static").exit_code == 0
    assert executor.started == [one.key] and ledger.record(one.key) != old.record


@pytest.mark.parametrize("action", ["plan", "run"])
def test_what_is_known_of_a_job_is_read_once(
    tmp_path: Path, executor: Obedient, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    ledger, jobs = Ledger(tmp_path), [job(1, PIP), job(2, PIP)]
    images = [
        FleetImage(name=NAME, digest=one.digest, archs=(), ptx=(), claims=PIP, reference=one.reference) for one in jobs
    ]
    monkeypatch.setattr(gather, "images", lambda *_rest: [Located(planned=one, found=None) for one in images])
    ledger.note(jobs)
    for one in jobs:
        ledger.commit(judged(one, PIP, pip=installed()))
    read, record = list[str](), Ledger.record

    def watched(self: Ledger, key: str) -> FleetRecord | None:
        read.append(key)
        return record(self, key)

    monkeypatch.setattr(Ledger, "record", watched)
    assert call(tmp_path, NAME, "--tier", "static", action=action).exit_code == 0
    assert read == sorted(one.key for one in jobs) and not executor.started


def test_an_engine_is_named_for_this_machine_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not reach workers of slurm"):
        call(tmp_path, NAME, "--on", "slurm", "--engine", "unix:///x")


def test_an_executor_that_nobody_knows_is_refused_before_anything_else(tmp_path: Path) -> None:
    done = commands.call("fleet", "run", "cu126-torch27", "--on", "kube", "--out", str(tmp_path))
    assert done.returncode == 2 and "--on kube: is nothing that runs jobs" in done.stderr


def test_status_of_an_empty_folder_says_what_begins_a_run(tmp_path: Path) -> None:
    done = commands.call("fleet", "status", "--out", str(tmp_path))
    assert done.returncode == 0 and "nothing was booked or judged" in done.stdout and "nox -s fleet" in done.stdout
