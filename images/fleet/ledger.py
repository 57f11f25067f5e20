"""The fleet's folder: who has booked a job, what was judged, and why a job gave nothing. One file each.

    runs/ID.json          the jobs of a run, once all are booked; ID.lock is held by its process for as long as it lives
    pairs/KEY/job.json, booking.json, evidence.json, record.json, failed.json
    pairs/KEY/lock        held by the worker that does the job, and by whoever keeps its record
    pairs/KEY/booking.lock  held for the moment in which a booking is made or given back
    pairs/KEY/judged      which record was judged by a submitter, who has reported it
    pairs/KEY/earlier/    records that were too old, or failed

`build --on` keeps its jobs so, too: no evidence.json and no failed.json, the record has it all (builds/ledger.py).
A run is one process. Who resumes begins another, so a booking lives if the process that made it does.

A file appears whole or not at all, whoever is killed: what is half written has a name that nobody reads. A machine that
goes down can leave an empty file, but no such record or evidence: they are on the disk before they have their names.
Of two who write a record (a link to a finished file) one succeeds.
A lock is the kernel's: it goes with the process that held it, however that one ended. So a booking is left behind when
nobody holds the lock of its run. On a shared file system both need locks across machines: NFS 4, Lustre with `flock`.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Generic, TypeVar

from pydantic import ValidationError

from images.errors import Problem, UserError
from images.fleet.model import Booking, Failure, FleetRecord, FleetRun, Job, JobRecord, Judged, LedgerJob
from images.site import records
from images.validation.rows import Row
from validate.evidence import Evidence

Model = TypeVar("Model", bound=Row)
JobT = TypeVar("JobT", bound=LedgerJob)
RecordT = TypeVar("RecordT", bound=JobRecord)

_RUNS, _PAIRS, _RECORD, _JUDGED = "runs", "pairs", "record.json", "judged"


class JobLedger(Generic[JobT, RecordT]):
    """The jobs and records below a folder, which all submitters and, on Slurm, all workers see."""

    _jobs: type[JobT]
    _records: type[RecordT]
    _files: Sequence[str] = (_JUDGED, _RECORD)
    """Of a record: they are put aside together, in this order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # --- runs -------------------------------------------------------------------------------------------------------

    @contextmanager
    def running(self, run: FleetRun) -> Iterator[None]:
        """Hold a run's lock. No other process has its ID; who looks whether it lives holds the lock for a moment."""
        with _locked(self._run(run.id).with_suffix(".lock")):
            yield

    def note_run(self, run: FleetRun) -> None:
        """Keep what a run is about. Its own process does so, once; all that changes later is that it ended."""
        _replace(self._run(run.id), run.model_dump_json())

    def end_runs(self, keys: Collection[str] = ()) -> list[FleetRun]:
        """Note the end of dead runs whose jobs are all done, whoever did them, and give back what they had booked.

        `keys`: of those that have any of these jobs; without, of all.
        """
        ended = list[FleetRun]()
        for file in self._run_files():
            with suppress(UserError, OSError):  # no failure of the caller's, whose jobs are done
                run = _read(FleetRun, file)
                if run.ended is None and not (keys and set(run.jobs).isdisjoint(keys)) and self._over(run):
                    self._end(run)
                    ended.append(run)
        return ended

    def _over(self, run: FleetRun) -> bool:
        return all(map(self.done, run.jobs)) and not self.lives(run.id)

    def _end(self, run: FleetRun) -> None:
        for key in run.jobs:
            if self.booked(key):
                self.release(key, run.id)
        self.note_run(run.model_copy(update={"ended": datetime.now(UTC)}))

    def runs(self) -> tuple[FleetRun, ...]:
        """Every run, oldest first. Raises UserError for a file that is no run."""
        return _by_start(_read(FleetRun, file) for file in self._run_files())

    def readable_runs(self) -> tuple[FleetRun, ...]:
        """Those whose files can be read, oldest first: a machine that went down can leave an empty one."""
        found = list[FleetRun]()
        for file in self._run_files():
            with suppress(UserError):
                found.append(_read(FleetRun, file))
        return _by_start(found)

    def lives(self, run_id: str) -> bool:
        """Whether a process holds the lock of a run."""
        try:
            with self._run(run_id).with_suffix(".lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look are no process of the run
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def _run_files(self) -> Iterable[Path]:
        return (self.folder / _RUNS).glob("*.json")

    def _run(self, run_id: str) -> Path:
        return self.folder / _RUNS / f"{run_id}.json"

    # --- bookings ---------------------------------------------------------------------------------------------------

    def book(self, booking: Booking, job: JobT, *, resumes: bool = False) -> Booking:
        """Take a job, unless another run has it that lives. Returns the booking that stands now: ours, or that run's.

        One that a dead run left is replaced. What that run left on the cluster stays known: ours has it.
        `resumes`: a booking that ours would forget stays, too, unless its job is done.
        """
        folder = self.pair(booking.key)
        with self._booking(booking.key):
            other = self.booked(booking.key)
            forgotten = other and resumes and other.is_forgotten_on(booking.executor) and not self.done(booking.key)
            if other and (forgotten or self.lives(other.run)):
                return other
            mine = booking.after(other)
            _renew(folder / "job.json", job)
            _replace(folder / "booking.json", mine.model_dump_json())
        return mine

    def note_cluster_id(self, booking: Booking) -> None:
        """Note what a booked job is called on the cluster, if its run still has it."""
        with self._booking(booking.key):
            found = self.booked(booking.key)
            if found and found.run == booking.run:
                _replace(self.pair(booking.key) / "booking.json", booking.model_dump_json())

    def release(self, key: str, run_id: str) -> None:
        """Give a job back, if this run has it."""
        with self._booking(key):
            found = self.booked(key)
            if found and found.run == run_id:
                (self.pair(key) / "booking.json").unlink(missing_ok=True)

    def booked(self, key: str) -> Booking | None:
        """Who has a job; None: nobody."""
        return _find(Booking, self.pair(key) / "booking.json")

    def held(self, key: str) -> Booking | None:
        """The booking of a process that lives; None: nobody does the job now."""
        found = self.booked(key)
        return found if found and self.lives(found.run) else None

    @contextmanager
    def _booking(self, key: str) -> Iterator[None]:
        """Look at a booking and change it, with nobody between the two."""
        with _locked(self.pair(key) / "booking.lock"):
            yield

    # --- jobs and records -------------------------------------------------------------------------------------------

    def pair(self, key: str) -> Path:
        """The folder of a job."""
        return self.folder / _PAIRS / key

    def job_keys(self) -> tuple[str, ...]:
        """Every job that was ever booked here."""
        folder = self.folder / _PAIRS
        return tuple(sorted(one.name for one in folder.iterdir())) if folder.is_dir() else ()

    def job(self, key: str) -> JobT | None:
        return _find(self._jobs, self.pair(key) / "job.json")

    def note(self, jobs: Iterable[JobT]) -> None:
        """Keep what jobs are about, before anything names them. What is there already stays."""
        for job in jobs:
            file = self.pair(job.key) / "job.json"
            if not file.exists():
                _link(file, job)

    def record(self, key: str) -> RecordT | None:
        """What a job came to; None: there is no record yet."""
        return _find(self._records, self.pair(key) / _RECORD)

    def note_judged(self, record: RecordT) -> None:
        """Note that a record was judged, and reported. The caller has booked the job."""
        _replace(self.pair(record.key) / _JUDGED, _mark(record))

    def done(self, key: str) -> bool:
        """Whether a job leaves nothing to be done: its record was judged. Raises UserError for a damaged record."""
        record = self.record(key)
        return record is not None and _holds(self.pair(key) / _JUDGED, _mark(record))

    def records_of(self, keys: Iterable[str]) -> dict[str, RecordT]:
        """Those of these jobs that have one."""
        return {key: record for key in keys if (record := self.record(key))}

    def records(self) -> Iterator[RecordT]:
        """The newest record of each job."""
        return (record for key in self.job_keys() if (record := self.record(key)))

    @contextmanager
    def judging(self, key: str) -> Iterator[None]:
        """Hold a job's lock while it is done: another worker of the same job waits, then finds the record."""
        with _locked(self.pair(key) / "lock"):
            yield

    def put_aside(self, key: str) -> None:
        """Make room for a new record: the one that is there was too old, or not good enough.

        Waits for a worker that judges the job; if that one brings a record meanwhile, it stays.
        """
        folder, record = self.pair(key), self.record(key)
        if record is None:
            return
        with self.judging(key):
            if self.record(key) != record:
                return
            earlier = folder / "earlier" / f"{record.ended:%Y%m%dT%H%M%S}"
            earlier.mkdir(parents=True, exist_ok=True)
            for name in self._files:
                with suppress(FileNotFoundError):
                    (folder / name).rename(earlier / name)

    def _keep(self, record: RecordT) -> bool:
        """Put a record in place, which is on the disk by then. False: there was one already, which stays."""
        return _link(self.pair(record.key) / _RECORD, record, durable=True)


class Ledger(JobLedger[Job, FleetRecord]):
    """What a fleet judged: each record with its evidence."""

    _jobs, _records = Job, FleetRecord
    _files = (*JobLedger._files, "evidence.json")  # without the record, the evidence counts for nothing

    def commit(self, judged: Judged) -> bool:
        """Keep a record with its evidence. False: there was one already, which stays. Call it within `judging`."""
        folder = self.pair(judged.record.key)
        if (folder / _RECORD).exists():
            return False
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "evidence.json", judged.evidence, durable=True)
        kept = self._keep(judged.record)
        (folder / "failed.json").unlink(missing_ok=True)
        return kept

    def evidence_of(self, record: FleetRecord) -> bytes:
        """The evidence of a record, checked: it is the one that was recorded, and says what the record says.

        Raises UserError.
        """
        file = self.pair(record.key) / "evidence.json"
        try:
            content = file.read_bytes()
        except OSError as error:
            then = f"take {file.parent}/record.json away: the pair is then judged again"
            raise UserError(Problem(where=str(file), cause=f"can't be read: {error}", then=then), code=1) from None
        records.judged_again(record.line, content)
        return content

    def evidence_read(self, record: FleetRecord) -> Evidence:
        """The same, parsed."""
        return Evidence.loads(self.evidence_of(record).decode())

    def fail(self, failure: Failure) -> None:
        """Note why a job gave no record."""
        self.pair(failure.key).mkdir(parents=True, exist_ok=True)
        _replace(self.pair(failure.key) / "failed.json", failure.model_dump_json())

    def failure(self, key: str) -> Failure | None:
        return _find(Failure, self.pair(key) / "failed.json")


def _mark(record: JobRecord) -> str:
    """What tells a record from an earlier or a later one of its job."""
    return f"{record.run} {record.ended.isoformat()}"


def _find(model: type[Model], path: Path) -> Model | None:
    try:
        return _read(model, path)
    except FileNotFoundError:
        return None


def _read(model: type[Model], path: Path) -> Model:
    try:
        return model.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        cause = f"is no {model.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        then = "another version wrote it, or it is damaged: take it away, and give the command again"
        raise UserError(Problem(where=str(path), cause=cause, then=then), code=1) from None


def _link(path: Path, row: Row, *, durable: bool = False) -> bool:
    """Put a finished file in place, unless there is one. False: there is."""
    partial = _finished(path, row.model_dump_json(), durable)
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink()
    return True


def _renew(path: Path, row: Row) -> None:
    """Put a finished file in place, unless it is there as it would be: a look at it costs less than a new one."""
    text = row.model_dump_json()
    if not _holds(path, text):
        _replace(path, text)


def _holds(path: Path, text: str) -> bool:
    """Whether a file has this content. One that this user can't read is taken to have another."""
    try:
        return path.read_bytes() == _content(text)
    except OSError:
        return False


def _replace(path: Path, text: str, *, durable: bool = False) -> None:
    _finished(path, text, durable).replace(path)


def _finished(path: Path, text: str, durable: bool) -> Path:
    """The whole content, under a name that nobody reads; `durable`: on the disk before anything names it."""
    partial = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    with _opened(partial, "xb") as file:
        file.write(_content(text))
        file.flush()
        if durable:
            os.fsync(file.fileno())
    return partial


def _content(text: str) -> bytes:
    return f"{text}\n".encode()


def _opened(path: Path, mode: str) -> IO[bytes]:
    """A file, in a folder that is made if it is the first there. With the umask's modes: a group can share them."""
    try:
        return path.open(mode)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open(mode)


def _by_start(runs: Iterable[FleetRun]) -> tuple[FleetRun, ...]:
    return tuple(sorted(runs, key=lambda run: run.started))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, once nobody else does."""
    with _opened(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
