"""Who has a run, and which of its jobs are this process's: the same for images that are judged and that are built."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from images.fleet.executors.executor import Executor
from images.fleet.ledger import JobLedger, JobT, RecordT
from images.fleet.model import Booking, FleetRun

Say = Callable[[str, str], None]
"""Gets a job's key and a sentence."""


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


def take(
    ledger: JobLedger[JobT, RecordT],
    run_of: FleetRun,
    job: JobT,
    outdated: Mapping[str, RecordT],
    say: Say,
    *,
    resumes: bool = False,
) -> Booking | None:
    """Book a job, and put its record aside if it is `outdated` (job's key -> record). Another one answers for the job.

    A job whose record was put aside has ended, so nothing is watched that a dead run submitted of it.
    None: somebody else has it, who is told by `say`. `resumes`: or had it, and left it on another cluster.
    """
    booked = ledger.book(booking(run_of, job.key), job, resumes=resumes)
    if booked.run != run_of.id:
        dead = "" if ledger.lives(booked.run) else f"; that process is dead: --resume --on {booked.executor} goes on"
        who = f"{booked.owner}, who booked it on {booked.executor} at {booked.since:%H:%M:%S} UTC"
        say(job.key, f"is left to {who}{dead}")
        return None
    if job.key not in outdated or ledger.record(job.key) != outdated[job.key]:
        return booked
    ledger.put_aside(job.key)
    mine = booking(run_of, job.key)
    ledger.note_cluster_id(mine)
    return mine


@contextmanager
def handed_over(
    ledger: JobLedger[JobT, RecordT], run_of: FleetRun, taken: Mapping[str, Booking], executor: Executor
) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Cancel what was begun, on any way out, and give the jobs back. Yields what gets key -> ID once they are started.

    What a dead run submitted stays booked where it could not be watched: the next `--resume` finds it.
    """
    mine = {key for key, one in taken.items() if not one.cluster_id}

    def started(ids: Mapping[str, str]) -> None:
        for key, cluster_id in ids.items():
            if cluster_id != taken[key].cluster_id:  # one that is watched keeps the run that submitted it
                ledger.note_cluster_id(booking(run_of, key, cluster_id))
        mine.update(taken)

    try:
        yield started
    finally:
        executor.cancel()
        for key in mine:
            ledger.release(key, run_of.id)
