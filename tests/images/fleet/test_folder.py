"""The fleet's folder: one lease of a job, one record, whoever is killed."""

import fcntl
import multiprocessing
import os
import resource
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from images.errors import UserError
from images.fleet import folder as folder_module
from images.fleet.folder import JobFolder
from images.fleet.model import Failure, FleetRun, JobResult
from tests.support.fleet_records import claim, claims, installed, job, result

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
PIP = claims(claim("pip"))
JOB = job(1, PIP)
OTHER = JOB.model_copy(update={"reference": "other.test/b@sha256:1"})
"""The same job, as another run has it."""


def run_of(word: str, on: str = "local") -> FleetRun:
    return FleetRun(id=word, owner=word, executor=on)


def given(node: str = "n1") -> JobResult:
    return result(JOB, PIP, node=node, pip=installed())


def holder(folder: JobFolder) -> str:
    lease = folder.lease(JOB.key)
    return lease.run if lease else ""


def left_on(folder: JobFolder, word: str, on: str, cluster_id: str) -> None:
    """What a run that was killed leaves."""
    run = run_of(word, on)
    with folder.running(run):
        folder.take(run, JOB)
        folder.submitted(JOB.key, word, cluster_id)


def test_of_two_who_take_a_job_one_has_it(tmp_path: Path) -> None:
    folder, one, two = JobFolder(tmp_path), run_of("one"), run_of("two")
    with folder.running(one), folder.running(two):
        assert folder.take(one, JOB).run == "one" and folder.take(two, OTHER).run == "one"
        assert folder.job(JOB.key) == JOB, "it was left to the first"
        folder.submitted(JOB.key, "two", "12")
        folder.release(JOB.key, "two")
        assert holder(folder) == "one", "nobody gives back, or renames, what others have"
        folder.release(JOB.key, "one")
        assert folder.take(two, JOB).run == "two"


def test_a_lease_of_a_run_that_nobody_holds_is_taken_over(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    left_on(folder, "one", "local", "12")
    assert not folder.lives("one")
    with folder.running(run_of("two")):
        assert folder.take(run_of("two"), JOB).cluster_id == "12", "what a dead run left on the cluster is watched"
        assert holder(folder) == "two"


def judged(folder: JobFolder) -> None:
    """As a submitter notes it."""
    record = folder.record(JOB.key)
    assert record
    (folder.job_path(JOB.key) / "verdict.json").write_text(f'{{"evidence_sha256": "{record.evidence_sha256}"}}')


def test_a_verdict_of_another_record_leaves_a_job_undone(tmp_path: Path) -> None:
    """Somebody took a damaged record away, and a worker brought another; or the submitter was killed while it wrote."""
    folder = JobFolder(tmp_path)
    folder.keep(given())
    judged(folder)
    (folder.job_path(JOB.key) / "record.json").unlink()
    assert not folder.done(JOB.key)
    folder.keep(given("n2"))
    assert not folder.done(JOB.key)
    (folder.job_path(JOB.key) / "verdict.json").write_text('{"evid')
    assert not folder.done(JOB.key)


@pytest.mark.parametrize("there", ["", "{}\n", OTHER.model_dump_json() + "\n"])
def test_a_lease_has_the_job_that_it_was_taken_for(tmp_path: Path, there: str) -> None:
    """An earlier run's has the claims of its day."""
    folder = JobFolder(tmp_path)
    folder.job_path(JOB.key).mkdir(parents=True)
    (folder.job_path(JOB.key) / "job.json").write_text(there)
    with folder.running(run_of("one")):
        folder.take(run_of("one"), JOB)
    assert folder.job(JOB.key) == JOB


class Overtaken(JobFolder):
    """After each look at a run's life, another submitter takes the job, unless a lock holds that one off."""

    took: list[str]

    def lives(self, run_id: str) -> bool:
        alive = super().lives(run_id)
        if free(self.job_path(JOB.key) / "lease.lock"):
            self.took = ["two"] if JobFolder(self.path).take(run_of("two"), JOB).run == "two" else []
        return alive


def free(lock: Path) -> bool:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_nobody_takes_over_what_another_took_over_meanwhile(tmp_path: Path) -> None:
    """One looks, sees a dead run, and is overtaken before it acts."""
    folder = Overtaken(tmp_path)
    left_on(JobFolder(tmp_path), "dead", "local", "")
    with folder.running(run_of("one")), folder.running(run_of("two")):
        folder.took = []
        took = [*folder.took, *(["one"] if folder.take(run_of("one"), JOB).run == "one" else []), *folder.took]
        assert len(took) == 1 and [holder(folder)] == took


def test_who_looks_at_a_run_is_not_taken_for_it(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    with folder.running(run_of("one")):
        assert folder.lives("one")
    with (tmp_path / "runs" / "one.lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not folder.lives("one")


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_files_have_the_mode_of_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    """A group whose members have umask 002 shares a folder."""
    before = os.umask(umask)
    try:
        folder = JobFolder(tmp_path)
        with folder.running(run_of("one")):
            folder.take(run_of("one"), JOB)
            folder.keep(given())
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.rglob("*") if file.is_file()} == {mode}


def test_the_first_record_stays(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    assert folder.record(JOB.key) is None
    folder.fail(JOB.key, Failure(at=NOW, cause="the node went away"))
    failure = folder.failure(JOB.key)
    assert failure and failure.cause == "the node went away"
    folder.keep(given("n1"))
    folder.keep(given("n2"))
    record = folder.record(JOB.key)
    assert record and record.worker.node == "n1" and folder.evidence(record).sha256 == record.evidence_sha256
    assert folder.failure(JOB.key) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"25.0"', '"26.0"'),
        lambda text: text[:-40],
        lambda _text: "{}",
        lambda _text: result(JOB, PIP, pip=installed("24.0")).evidence,
    ],
)
def test_evidence_that_was_changed_is_refused(tmp_path: Path, change: Callable[[str], str]) -> None:
    folder = JobFolder(tmp_path)
    folder.keep(given())
    file = folder.job_path(JOB.key) / "evidence.json"
    file.write_text(change(file.read_text()))
    record = folder.record(JOB.key)
    assert record
    with pytest.raises(UserError, match=r"evidence\.json"):
        folder.evidence(record)


def test_an_old_record_is_put_aside_whole(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    folder.keep(result(JOB, PIP, build={"digest": JOB.digest}, pip=installed()))
    judged(folder)
    folder.put_aside(JOB.key)
    folder.put_aside(JOB.key)
    assert folder.records() == {}
    names = ["build.json", "evidence.json", "record.json", "verdict.json"]
    assert sorted(path.name for path in folder.job_path(JOB.key).glob("earlier/*/*")) == names
    folder.keep(given("n2"))
    assert list(folder.records()) == [JOB.key]


def test_a_record_that_came_meanwhile_is_not_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one waits for the lock, another puts the old record aside and its worker brings a new one."""
    folder = JobFolder(tmp_path)
    folder.keep(given("n1"))
    doing = JobFolder.doing

    @contextmanager
    def overtaken(self: JobFolder, key: str) -> Iterator[None]:
        monkeypatch.setattr(JobFolder, "doing", doing)
        JobFolder(tmp_path).put_aside(key)
        JobFolder(tmp_path).keep(given("n2"))
        with doing(self, key):
            yield

    monkeypatch.setattr(JobFolder, "doing", overtaken)
    folder.put_aside(JOB.key)
    record = folder.record(JOB.key)
    assert record and record.worker.node == "n2"
    assert len(list(tmp_path.rglob("earlier/*/record.json"))) == 1


def test_a_damaged_file_is_told_with_its_place(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    folder.keep(given())
    (folder.job_path(JOB.key) / "record.json").write_text("{}")
    with pytest.raises(UserError, match=r"record\.json: is no JobRecord"):
        folder.record(JOB.key)


def _killed_within(path: str, file: str) -> None:
    """Is killed by the kernel within a file."""
    write = folder_module._write

    def limited(target: Path, text: str) -> None:
        if target.name == file:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
        write(target, text)

    folder_module._write = limited
    JobFolder(Path(path)).submitted(JOB.key, "one", "12")
    JobFolder(Path(path)).keep(given())


@pytest.mark.parametrize(("file", "cluster_id"), [("lease.json", ""), ("evidence.json", "12"), ("record.json", "12")])
def test_who_is_killed_within_a_file_leaves_nothing_that_is_read(tmp_path: Path, file: str, cluster_id: str) -> None:
    folder = JobFolder(tmp_path)
    folder.take(run_of("one"), JOB)
    killed = multiprocessing.get_context("fork").Process(target=_killed_within, args=(str(tmp_path), file))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGXFSZ
    lease = folder.lease(JOB.key)
    assert lease and lease.cluster_id == cluster_id and folder.record(JOB.key) is None
    folder.keep(given())
    record = folder.record(JOB.key)
    assert record and folder.evidence(record).digest == JOB.digest, "as if nobody had been killed"


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a machine that goes down."""
    folder, there = JobFolder(tmp_path), dict[str, bool]()

    def watched(number: int) -> None:
        name = Path(f"/proc/self/fd/{number}").readlink().name.split(".")[1]
        there[name] = (folder.job_path(JOB.key) / f"{name}.json").exists()

    monkeypatch.setattr(os, "fsync", watched)
    folder.keep(given())
    assert there == {"evidence": False, "record": False}
