"""The fleet's folder: one owner of a job, one record, whoever is killed."""

import fcntl
import multiprocessing
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import pytest

from images.errors import UserError
from images.fleet import booking as bookings
from images.fleet import gather
from images.fleet.ledger import Ledger
from images.fleet.model import Booking, Failure, FleetRecord, FleetRun, Job, Judged, WorkerInfo
from images.site import records
from tests.support.checkout import ROOT
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import judge

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DIGEST = "sha256:" + "ab" * 32
CLAIMS = ClaimSet(
    image="cu126-torch27", claims=(Claim(id="S1", subject="pip", tier=Tier.STATIC, probe="static.x", statement="x"),)
)
JOB = Job(
    image="cu126-torch27",
    digest=DIGEST,
    reference=f"a.test/b@{DIGEST}",
    tiers=(Tier.STATIC,),
    claims={"image": "cu126-torch27", "claims": []},
)
OTHER = JOB.model_copy(update={"reference": f"other.test/b@{DIGEST}"})
"""The same job, as another run has it."""


def run_of(word: str) -> FleetRun:
    return FleetRun(id=word, owner=word, started=NOW, executor="local", jobs=(JOB.key,))


def booking(word: str) -> Booking:
    return Booking(key=JOB.key, run=word, owner=word, since=NOW, executor="local")


def judged(node: str = "n1", run: str = "one") -> Judged:
    measurement = Measurement(subject="pip", seconds=0.1, evidence={"error": node})
    record = Record(probe="static.x", outcome=Outcome.COMPLETED, seconds=1, measurements=(measurement,))
    evidence = Evidence(
        image="cu126-torch27", digest=DIGEST, records=(record,), host={"date": NOW.isoformat()}, claims=CLAIMS.claims
    )
    line = records.line_of(evidence, judge(CLAIMS, evidence), "fleet")
    worker = WorkerInfo(executor="local", node=node)
    return Judged(
        record=FleetRecord(key=JOB.key, run=run, worker=worker, started=NOW, ended=NOW, line=line),
        evidence=evidence.dumps(),
    )


def test_of_two_who_book_a_job_one_has_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.running(run_of("one")), ledger.running(run_of("two")):
        assert ledger.book(booking("one"), JOB) == booking("one")
        assert ledger.book(booking("two"), JOB) == booking("one")
        ledger.release(JOB.key, "two")
        assert ledger.booked(JOB.key) == booking("one"), "nobody gives back what others have"
        ledger.release(JOB.key, "one")
        assert ledger.book(booking("two"), JOB) == booking("two")


def test_a_booking_of_a_run_that_nobody_holds_is_taken_over(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.running(run_of("one")):
        assert ledger.book(booking("one"), JOB) == booking("one")
    assert not ledger.lives("one")
    with ledger.running(run_of("two")):
        assert ledger.book(booking("two"), JOB) == booking("two")
        assert ledger.booked(JOB.key) == booking("two")


def test_what_a_dead_run_left_on_the_cluster_is_in_the_booking_that_is_kept(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.running(run_of("one")):
        ledger.book(booking("one").model_copy(update={"cluster_id": "12"}), JOB)
    with ledger.running(run_of("two")):
        mine = ledger.book(booking("two"), JOB)
        assert mine == ledger.booked(JOB.key) and (mine.cluster_id, mine.submitted_by) == ("12", "one")


def test_who_resumes_takes_nothing_that_a_dead_run_left_on_another_cluster(tmp_path: Path) -> None:
    """Looked at and booked under one lock. A new run takes it; who watches that cluster resumes it."""
    ledger = Ledger(tmp_path)
    left = booking("one").model_copy(update={"cluster_id": "12", "executor": "slurm"})
    with ledger.running(run_of("one")):
        ledger.book(left, JOB)
    with ledger.running(run_of("two")):
        assert ledger.book(booking("two"), JOB, resumes=True) == left == ledger.booked(JOB.key)
        there = booking("two").model_copy(update={"executor": "slurm"})
        assert ledger.book(there, JOB, resumes=True).cluster_id == "12"
    with ledger.running(run_of("three")):
        assert ledger.book(booking("three"), JOB) == booking("three")


def test_who_is_left_a_job_by_a_dead_process_is_told_what_goes_on(tmp_path: Path) -> None:
    ledger, said = Ledger(tmp_path), list[str]()
    left = booking("one").model_copy(update={"cluster_id": "12", "executor": "slurm"})

    def take() -> Booking | None:
        return bookings.take(ledger, run_of("two"), JOB, {}, lambda _key, text: said.append(text), resumes=True)

    with ledger.running(run_of("two")):
        with ledger.running(run_of("one")):
            ledger.book(left, JOB)
            assert take() is None
        assert take() is None
    living, dead = said
    assert living == "is left to one, who booked it on slurm at 12:00:00 UTC"
    assert dead == f"{living}; that process is dead: --resume --on slurm goes on"


def test_a_job_that_is_done_is_left_to_nobody(tmp_path: Path) -> None:
    """A dead run's booking stays while that run has other jobs to do; the record answers, wherever it was made."""
    ledger = Ledger(tmp_path)
    left = booking("one").model_copy(update={"cluster_id": "12", "executor": "slurm"})
    with ledger.running(run_of("one")):
        ledger.book(left, JOB)
    assert ledger.commit(judged())
    ledger.note_judged(judged().record)
    with ledger.running(run_of("two")):
        assert ledger.book(booking("two"), JOB, resumes=True).run == "two"


@pytest.mark.parametrize("there", ["", "{}\n", OTHER.model_dump_json() + "\n"])
def test_a_booking_has_the_job_that_it_was_made_for(tmp_path: Path, there: str) -> None:
    """An earlier run's has the claims of its day, and a machine that went down can leave an empty file."""
    ledger = Ledger(tmp_path)
    ledger.pair(JOB.key).mkdir(parents=True)
    (ledger.pair(JOB.key) / "job.json").write_text(there)
    with ledger.running(run_of("one")), ledger.running(run_of("two")):
        ledger.book(booking("one"), JOB)
        ledger.book(booking("two"), OTHER)
        assert ledger.job(JOB.key) == JOB, "it was left to the first"


def test_a_job_that_this_user_can_not_read_is_written_anew(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.pair(JOB.key).mkdir(parents=True)
    (ledger.pair(JOB.key) / "job.json").symlink_to("job.json")  # root reads any file but this
    with ledger.running(run_of("one")):
        ledger.book(booking("one"), JOB)
    assert ledger.job(JOB.key) == JOB


def test_what_is_noted_of_a_job_is_written_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    file = ledger.pair(JOB.key) / "job.json"
    ledger.note([JOB])
    noted = file.stat().st_ino
    ledger.note([OTHER])
    with ledger.running(run_of("one")):
        ledger.book(booking("one"), JOB)
    assert ledger.job(JOB.key) == JOB and file.stat().st_ino == noted


def _book(folder: str, word: str, start: object, results: object) -> None:
    ledger = Ledger(Path(folder))
    with ledger.running(run_of(word)):
        start.wait()  # type: ignore[attr-defined]
        results.put((word, ledger.book(booking(word), JOB).run == word))  # type: ignore[attr-defined]
        start.wait()  # type: ignore[attr-defined]


def test_of_many_who_take_over_at_once_one_has_the_job(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.running(run_of("dead")):
        ledger.book(booking("dead"), JOB)
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(8), context.Queue()
    processes = [
        context.Process(target=_book, args=(str(tmp_path), f"r{number}", start, results)) for number in range(8)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert [took for _, took in found].count(True) == 1


class Overtaken(Ledger):
    """After each look at a run's life, another submitter books the job, unless a lock holds that one off."""

    took: list[str]

    def lives(self, run_id: str) -> bool:
        alive = super().lives(run_id)
        if free(self.pair(JOB.key) / "booking.lock"):
            self.took = ["two"] if Ledger(self.folder).book(booking("two"), JOB).run == "two" else []
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
    ledger = Overtaken(tmp_path)
    with Ledger(tmp_path).running(run_of("dead")):
        Ledger(tmp_path).book(booking("dead"), JOB)
    with ledger.running(run_of("one")), ledger.running(run_of("two")):
        ledger.took = []
        took = [*ledger.took, *(["one"] if ledger.book(booking("one"), JOB).run == "one" else []), *ledger.took]
        assert len(took) == 1, took
        found = ledger.booked(JOB.key)
        assert found and [found.run] == took


def test_what_a_run_lost_it_neither_gives_back_nor_renames(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.running(run_of("two")):
        ledger.book(booking("two"), JOB)
        ledger.note_cluster_id(booking("one").model_copy(update={"cluster_id": "12"}))
        ledger.release(JOB.key, "one")
        assert ledger.booked(JOB.key) == booking("two")


def test_who_looks_at_a_run_is_not_taken_for_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.running(run_of("one")):
        assert ledger.lives("one")
    lock = tmp_path / "runs" / "one.lock"
    with lock.open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not ledger.lives("one")


def test_a_run_begins_while_somebody_looks_at_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path)
    with ledger.running(run_of("one")):
        pass
    with (tmp_path / "runs" / "one.lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        flock = fcntl.flock

        def waits(file: IO[bytes], how: int) -> None:
            if how == fcntl.LOCK_EX:
                looking.close()
            flock(file, how)

        monkeypatch.setattr("fcntl.flock", waits)
        with ledger.running(run_of("one")):
            assert ledger.lives("one")


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_files_have_the_mode_of_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    """A group whose members have umask 002 shares a folder."""
    before = os.umask(umask)
    try:
        ledger = Ledger(tmp_path)
        with ledger.running(run_of("one")):
            ledger.book(booking("one"), JOB)
            ledger.commit(judged())
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.rglob("*") if file.is_file()} == {mode}


def test_the_first_record_stays(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.record(JOB.key) is None
    assert ledger.commit(judged("n1"))
    assert not ledger.commit(judged("n2"))
    record = ledger.record(JOB.key)
    assert record and record.worker.node == "n1"
    assert b'"error": "n1"' in ledger.evidence_of(record)


def test_evidence_without_a_record_is_no_record(tmp_path: Path) -> None:
    """What a worker leaves that is killed between the two."""
    ledger = Ledger(tmp_path)
    ledger.pair(JOB.key).mkdir(parents=True)
    (ledger.pair(JOB.key) / "evidence.json").write_text(judged("killed").evidence)
    assert ledger.record(JOB.key) is None
    assert ledger.commit(judged("n2"))
    record = ledger.record(JOB.key)
    assert record and b'"error": "n2"' in ledger.evidence_of(record)


@pytest.mark.parametrize(
    "change", [lambda text: text.replace('"n1"', '"n2"'), lambda text: text[:-40], lambda _text: "{}"]
)
def test_evidence_that_was_changed_is_refused(tmp_path: Path, change: object) -> None:
    ledger = Ledger(tmp_path)
    ledger.commit(judged("n1"))
    file = ledger.pair(JOB.key) / "evidence.json"
    file.write_text(change(file.read_text()))  # type: ignore[operator]
    record = ledger.record(JOB.key)
    assert record
    with pytest.raises(UserError):
        ledger.evidence_of(record)


def test_an_old_record_is_put_aside_whole(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.commit(judged("n1"))
    ledger.put_aside(JOB.key)
    ledger.put_aside(JOB.key)
    assert ledger.record(JOB.key) is None and list(ledger.records()) == []
    assert sorted(path.name for path in ledger.pair(JOB.key).rglob("*.json")) == ["evidence.json", "record.json"]
    assert ledger.commit(judged("n2"))


def test_a_record_that_came_meanwhile_is_not_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one waits for the lock, another puts the old record aside and its worker brings a new one."""
    ledger = Ledger(tmp_path)
    ledger.commit(judged("n1"))
    judging = Ledger.judging

    @contextmanager
    def overtaken(self: Ledger, key: str) -> Iterator[None]:
        monkeypatch.setattr(Ledger, "judging", judging)
        Ledger(tmp_path).put_aside(key)
        Ledger(tmp_path).commit(judged("n2"))
        with judging(self, key):
            yield

    monkeypatch.setattr(Ledger, "judging", overtaken)
    ledger.put_aside(JOB.key)
    record = ledger.record(JOB.key)
    assert record and record.worker.node == "n2"
    assert b'"error": "n2"' in ledger.evidence_of(record)
    assert len(list(tmp_path.rglob("earlier/*/record.json"))) == 1


def test_a_failure_is_kept_until_there_is_a_record(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.fail(Failure(key=JOB.key, run="one", at=NOW, cause="the node went away"))
    failure = ledger.failure(JOB.key)
    assert failure and failure.cause == "the node went away"
    ledger.commit(judged())
    assert ledger.failure(JOB.key) is None


def test_a_damaged_file_is_told_with_its_place(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.commit(judged())
    (ledger.pair(JOB.key) / "record.json").write_text("{}")
    with pytest.raises(UserError, match=r"record\.json: is no FleetRecord"):
        ledger.record(JOB.key)


STEPS: tuple[Callable[[Ledger], object], ...] = (
    lambda ledger: ledger.note([JOB]),
    lambda ledger: ledger.book(booking("one"), JOB),
    lambda ledger: ledger.note_run(run_of("one")),
    lambda ledger: ledger.note_cluster_id(booking("one").model_copy(update={"cluster_id": "12"})),
    lambda ledger: ledger.fail(Failure(key=JOB.key, run="one", at=NOW, cause="the node went away")),
    lambda ledger: ledger.commit(judged()),
    lambda ledger: ledger.note_judged(judged().record),
    lambda ledger: ledger.release(JOB.key, "one"),
    lambda ledger: ledger.end_runs(),
)
"""All that a run writes, in its order."""
HALF = 20
"""Bytes: fewer than any file of a ledger has."""


def readings(ledger: Ledger) -> list[object]:
    """All that is read of a job and of its runs."""
    ended = [(one.id, one.jobs, bool(one.ended)) for one in ledger.runs()]
    of_job = [ledger.job, ledger.booked, ledger.record, ledger.done, ledger.failure]
    return [ended, gather.booked(ledger), list(ledger.records()), *(read(JOB.key) for read in of_job)]


def _killed_within(folder: str, step: int, file: str) -> None:
    """Does a step, and is killed by the kernel within its first file, or within the record."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, HALF))

    class Limited(Ledger):
        def _keep(self, record: FleetRecord) -> bool:
            limit()
            return super()._keep(record)

    if file != "record.json":
        limit()
    STEPS[step](Limited(Path(folder)))


@pytest.mark.parametrize(
    ("step", "file"),
    [
        (0, "job.json"),
        (1, "booking.json"),
        (2, "one.json"),
        (3, "booking.json"),
        (4, "failed.json"),
        (5, "evidence.json"),
        (5, "record.json"),
        (6, "judged"),
        (8, "one.json"),
    ],
)
def test_who_is_killed_within_a_file_leaves_nothing_that_is_read(tmp_path: Path, step: int, file: str) -> None:
    ledger, sound = Ledger(tmp_path / "killed"), Ledger(tmp_path / "sound")
    for earlier in STEPS[:step]:
        earlier(ledger)
    before = readings(ledger)
    killed = multiprocessing.get_context("fork").Process(target=_killed_within, args=(str(ledger.folder), step, file))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGXFSZ
    (left,) = [path for path in ledger.folder.rglob("*") if path.is_file() and path.stat().st_size == HALF]
    assert file in left.name and readings(ledger) == before
    for later in STEPS[step:]:
        later(ledger)
    for each in STEPS:
        each(sound)
    assert readings(ledger) == readings(sound) and left.exists(), "as if nobody had been killed"


@pytest.mark.parametrize("file", ["evidence.json", "record.json"])
def test_a_record_and_its_evidence_are_on_the_disk_before_they_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """For a machine that goes down. All other files are of no verdict."""
    ledger, there = Ledger(tmp_path), list[bool]()

    def watched(number: int) -> None:
        if file in Path(f"/proc/self/fd/{number}").readlink().name:
            there.append((ledger.pair(JOB.key) / file).exists())

    monkeypatch.setattr(os, "fsync", watched)
    ledger.commit(judged())
    assert there == [False] and (ledger.pair(JOB.key) / file).exists()


HOLD = """
import sys, time
from pathlib import Path
from datetime import UTC, datetime
from images.fleet.ledger import Ledger
from images.fleet.model import FleetRun
ledger = Ledger(Path(sys.argv[1]))
run = FleetRun(id="one", owner="one", started=datetime.now(UTC), executor="local", jobs=())
with ledger.running(run), ledger.judging("a"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_locks_go_with_a_process_that_is_killed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    )
    assert child.stdout and child.stdout.readline() == b"held\n"
    assert ledger.lives("one")
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not ledger.lives("one")
    with ledger.judging("a"):
        pass
