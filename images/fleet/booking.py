"""Who has a run, and which of its jobs are this process's: the same for images that are judged and that are built."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from images.fleet.ledger import JobLedger, JobT, RecordT
from images.fleet.model import Booking, FleetRun


def new_run(executor: str, keys: Iterable[str]) -> FleetRun:
    """A run of the jobs with these keys, by this process."""
    started = datetime.now(UTC)
    run_id = f"{started:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"
    return FleetRun(id=run_id, owner=owner(), started=started, executor=executor, jobs=tuple(keys))


def owner() -> str:
    """`USER@HOST (process N)`: who to ask about a booking."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (process {os.getpid()})"


def booking(run_of: FleetRun, key: str, cluster_id: str = "") -> Booking:
    """What a run notes of a job that it takes."""
    return Booking(
        key=key,
        run=run_of.id,
        owner=run_of.owner,
        since=datetime.now(UTC),
        executor=run_of.executor,
        cluster_id=cluster_id,
    )


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A job that is this run's."""

    cluster_id: str = ""
    """What a dead run's submission of it is called on this cluster; empty: there is none."""
    run: str = ""
    """That run."""


def take(
    ledger: JobLedger[JobT, RecordT], run_of: FleetRun, job: JobT, say: Callable[[str, str], None]
) -> Taken | None:
    """Book a job, and make room for its record. None: somebody else has it, who is told by `say`."""
    left = ledger.booked(job.key)
    other = ledger.book(booking(run_of, job.key), job)
    if other:
        say(job.key, f"is left to {other.owner}, who booked it at {other.since:%H:%M:%S} UTC")
        return None
    _make_room(ledger, job.key, run_of)
    if left is None or left.executor != run_of.executor:
        return Taken()
    return Taken(cluster_id=left.cluster_id, run=left.run)


def _make_room(ledger: JobLedger[JobT, RecordT], key: str, run_of: FleetRun) -> None:
    """Put an old record aside; one that somebody made since this run began answers for the job, and stays."""
    record = ledger.record(key)
    if record and record.ended < run_of.started:
        ledger.put_aside(key)
