"""The fleet's folder: which process has leased a job, and the job's record. All submitters and Slurm's workers see it.

    runs/ID.lock             held for as long as the process of a run lives
    jobs/KEY/job.json, lease.json, evidence.json, build.json, record.json, failed.json
    jobs/KEY/verdict.json    and reports, once a submitter has judged the record: they name its evidence
    jobs/KEY/lock            held by the worker that does the job, and by whoever keeps its record
    jobs/KEY/lease.lock      held for the moment in which a lease is taken or given back
    jobs/KEY/earlier/        records that were too old, or failed

A file appears whole or not at all, and is on the disk by then, whoever is killed. A lock is the kernel's: it goes with
the process that held it. So a lease is left behind when nobody holds the lock of its run. On a shared file system both
need locks across machines: NFS 4, Lustre with `flock`.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from images.errors import failed
from images.fleet.model import Failure, FleetRun, Job, JobRecord, JobResult, Lease
from images.host.cache import write_whole
from images.publish import gate
from images.validation.rows import Row, first_fault
from validate.claims import ClaimSet
from validate.evidence import Evidence
from validate.judge import Verdict

Model = TypeVar("Model", bound=Row)


class JobFolder:
    """Runs, leases and job records below a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def running(self, run: FleetRun) -> AbstractContextManager[None]:
        """Hold a run's lock. No other process has its ID; who looks whether it lives holds the lock for a moment."""
        return _locked(self.path / "runs" / f"{run.id}.lock")

    def lives(self, run_id: str) -> bool:
        """Whether a process holds the lock of a run."""
        try:
            with (self.path / "runs" / f"{run_id}.lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look are no process of the run
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def take(self, run: FleetRun, job: Job) -> Lease:
        """Lease a job, unless another run has it that lives. Returns the lease that stands now: ours, or that run's.

        A dead run's lease is replaced; what that run left on the same executor stays known.
        """
        with self._leasing(job.key):
            other = self.lease(job.key)
            if other and self.lives(other.run):
                return other
            cluster_id = other.cluster_id if other and other.executor == run.executor else ""
            mine = Lease(
                run=run.id, owner=run.owner, since=datetime.now(UTC), executor=run.executor, cluster_id=cluster_id
            )
            self.note(job)
            _write(self.job_path(job.key) / "lease.json", mine.model_dump_json())
        return mine

    def submitted(self, key: str, run_id: str, cluster_id: str) -> None:
        """Note what a leased job is called on the cluster, if this run still has it."""
        with self._leasing(key):
            found = self.lease(key)
            if found and found.run == run_id:
                changed = found.model_copy(update={"cluster_id": cluster_id})
                _write(self.job_path(key) / "lease.json", changed.model_dump_json())

    def release(self, key: str, run_id: str) -> None:
        """Give a job back, if this run has it."""
        with self._leasing(key):
            found = self.lease(key)
            if found and found.run == run_id:
                (self.job_path(key) / "lease.json").unlink(missing_ok=True)

    def lease(self, key: str) -> Lease | None:
        """Who has a job; None: nobody."""
        return _read(Lease, self.job_path(key) / "lease.json")

    def _leasing(self, key: str) -> AbstractContextManager[None]:
        return _locked(self.job_path(key) / "lease.lock")

    def job_path(self, key: str) -> Path:
        return self.path / "jobs" / key

    def job_keys(self) -> list[str]:
        """Every job that was ever leased here."""
        folder = self.path / "jobs"
        return sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []

    def job(self, key: str) -> Job | None:
        return _read(Job, self.job_path(key) / "job.json")

    def note(self, job: Job) -> None:
        """Keep what a job is about."""
        _write(self.job_path(job.key) / "job.json", job.model_dump_json())

    def record(self, key: str) -> JobRecord | None:
        """The record of a job; None: there is none yet."""
        return _read(JobRecord, self.job_path(key) / "record.json")

    def records(self) -> dict[str, JobRecord]:
        """Key -> the newest record of each job."""
        return {key: record for key in self.job_keys() if (record := self.record(key))}

    def done(self, key: str) -> bool:
        """Whether a job leaves nothing to be done: its record was judged. Raises UserError for a damaged record."""
        record = self.record(key)
        if record is None:
            return False
        try:
            verdict = json.loads((self.job_path(key) / "verdict.json").read_bytes())
            return bool(verdict["evidence_sha256"] == record.evidence_sha256)
        except (OSError, ValueError, LookupError, TypeError):  # none, or whoever wrote it was killed
            return False

    def doing(self, key: str) -> AbstractContextManager[None]:
        """Hold a job's lock while it is done: another worker of the same job waits, then finds the record."""
        return _locked(self.job_path(key) / "lock")

    def keep(self, result: JobResult) -> None:
        """Keep a record with its evidence; a record that is there stays. Call it within `doing`."""
        folder = self.job_path(result.record.key)
        if (folder / "record.json").exists():
            return
        _write(folder / "evidence.json", result.evidence)
        if result.record.build:
            _write(folder / "build.json", json.dumps(result.record.build, indent=1))
        _write(folder / "record.json", result.record.model_dump_json())
        (folder / "failed.json").unlink(missing_ok=True)

    def put_aside(self, key: str) -> None:
        """Make room for a new record: the one that is there was too old, or not good enough.

        Waits for a worker that does the job; if that one brings a record meanwhile, it stays.
        """
        folder, record = self.job_path(key), self.record(key)
        if record is None:
            return
        with self.doing(key):
            if self.record(key) != record:
                return
            earlier = folder / "earlier" / f"{record.ended:%Y%m%dT%H%M%S}"
            earlier.mkdir(parents=True, exist_ok=True)
            for name in ("verdict.json", "record.json", "build.json", "evidence.json"):
                with suppress(FileNotFoundError):  # without the record, the others count for nothing
                    (folder / name).rename(earlier / name)

    def evidence(self, record: JobRecord) -> Evidence:
        """The evidence of a record, checked: it is the one that was recorded. Raises UserError."""
        file = self.job_path(record.key) / "evidence.json"
        then = f"take {file.parent}/record.json away: the job is then done again"
        try:
            found = Evidence.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise failed(str(file), f"can't be read: {error}", then) from None
        if (found.sha256, found.digest) != (record.evidence_sha256, record.digest):
            raise failed(str(file), "is not the evidence that was recorded", then)
        return found

    def verdict(self, record: JobRecord, job: Job, claims: ClaimSet) -> Verdict:
        """Judge the evidence of a record by `claims`, never by those that the worker wrote beside it.

        Raises UserError: the evidence is damaged, or of another job or image.
        """
        evidence = self.evidence(record)
        if (record.key, evidence.digest, evidence.image) != (job.key, job.digest, job.image):
            then = f"take {self.job_path(job.key)} away"
            raise failed(job.key, f"the evidence is of {evidence.image} {evidence.digest[:19]} ({record.key})", then)
        return gate.judged(evidence, claims, job.tiers)

    def fail(self, key: str, failure: Failure) -> None:
        """Note why a job gave no record."""
        _write(self.job_path(key) / "failed.json", failure.model_dump_json())

    def failure(self, key: str) -> Failure | None:
        return _read(Failure, self.job_path(key) / "failed.json")


def _read(model: type[Model], path: Path) -> Model | None:
    """None: there is no such file. Raises UserError for one that is something else."""
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        then = "another version wrote it, or it is damaged: take it away, and give the command again"
        raise failed(str(path), f"is no {model.__name__}: {first_fault(error)}", then) from None


def _write(path: Path, text: str) -> None:
    write_whole(path, f"{text}\n".encode())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, once nobody else does. With the umask's modes: a group can share the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
