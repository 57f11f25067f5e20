"""One run of a fleet: book jobs, hand them to an executor, keep what comes back. Whatever ends it, nothing is left."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from images.config import paths
from images.errors import UserError
from images.fleet.config import Fleet
from images.fleet.executors.executor import Ended, Executor, Placed
from images.fleet.judging import judged
from images.fleet.ledger import Ledger
from images.fleet.model import Booking, Failure, FleetRecord, FleetRun, Job
from images.fleet.worker import Assignment
from validate.judge import Verdict

_LINE = 200
"""Characters of a cause in the line of progress; `status` and the summary have it whole."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a job: a record with its verdict, or why there is none."""

    job: Job
    record: FleetRecord | None = None
    verdict: Verdict | None = None
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run goes."""

    fleet: Fleet
    ledger: Ledger
    executor: Executor
    say: Callable[[str, str], None]
    """Gets a job's key and a sentence."""
    gpus: str = "auto"
    engine: str = ""
    """Address of the engine (`--engine`), for workers in this process; empty: each finds its machine's."""
    keep: Callable[[Outcome], None] = lambda _outcome: None
    """Gets each outcome as it comes, while its job is booked."""


def new_run(executor: str, jobs: Mapping[str, Sequence[Job]]) -> FleetRun:
    """A run of these jobs, by this process."""
    started = datetime.now(UTC)
    keys = tuple(job.key for group in jobs.values() for job in group)
    run_id = f"{started:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"
    return FleetRun(id=run_id, owner=owner(), started=started, executor=executor, jobs=keys)


def owner() -> str:
    """`USER@HOST (process N)`: who to ask about a booking."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (process {os.getpid()})"


def run(run_of: FleetRun, jobs: Mapping[str, Sequence[Job]], options: RunOptions) -> tuple[Outcome, ...]:
    """Judge the jobs (machines -> jobs) that nobody else has. Raises UserError, KeyboardInterrupt after cleaning up."""
    ledger = options.ledger
    ledger.note(job for group in jobs.values() for job in group)  # before the run names them: --resume reads them
    with ledger.running(run_of):
        booked = _booked(run_of, jobs, options)
        outcomes: list[Outcome] = []
        try:
            for outcome in _judged(run_of, jobs, booked, options):
                outcomes.append(outcome)
        finally:
            options.executor.cancel()
            for placed in booked:
                ledger.release(placed.key, run_of.id)
        if all(outcome.record for outcome in outcomes) and len(outcomes) == sum(map(len, jobs.values())):
            ledger.end(run_of.model_copy(update={"ended": datetime.now(UTC)}))
    return tuple(outcomes)


def _booked(run_of: FleetRun, jobs: Mapping[str, Sequence[Job]], options: RunOptions) -> list[Placed]:
    ledger, found = options.ledger, []
    for machines, group in jobs.items():
        for job in group:
            left = ledger.booked(job.key)
            other = ledger.book(_booking(run_of, job), job)
            if other:
                options.say(job.key, f"is left to {other.owner}, who booked it at {other.since:%H:%M:%S} UTC")
                continue
            _make_room(ledger, job.key, run_of)
            found.append(_placed(run_of, machines, job, left, options))
    return found


def _booking(run_of: FleetRun, job: Job, cluster_id: str = "") -> Booking:
    return Booking(
        key=job.key,
        run=run_of.id,
        owner=run_of.owner,
        since=datetime.now(UTC),
        executor=run_of.executor,
        cluster_id=cluster_id,
    )


def _make_room(ledger: Ledger, key: str, run_of: FleetRun) -> None:
    """Put an old record aside; one that somebody made since this run began answers for the job, and stays."""
    record = ledger.record(key)
    if record and record.ended < run_of.started:
        ledger.put_aside(key)


def _placed(run_of: FleetRun, machines: str, job: Job, left: Booking | None, options: RunOptions) -> Placed:
    matrix = paths.workspace().matrix
    assignment = Assignment(
        job=job.model_dump_json(),
        run=run_of.id,
        executor=run_of.executor,
        matrix=str(matrix) if matrix != paths.RESOURCES / paths.MATRIX_NAME else "",
        ledger=str(options.ledger.folder.absolute()),
        gpus=options.gpus,
        engine=options.engine,
    )
    same = left is not None and left.executor == run_of.executor
    return Placed(
        key=job.key,
        task=assignment,
        gpus=job.gpus,
        machines=machines,
        on=options.fleet.workers[machines],
        cluster_id=left.cluster_id if left and same else "",
    )


def _judged(
    run_of: FleetRun, jobs: Mapping[str, Sequence[Job]], booked: Sequence[Placed], options: RunOptions
) -> Sequence[Outcome]:
    ledger, executor = options.ledger, options.executor
    mine = {placed.key for placed in booked}
    by_key = {job.key: job for group in jobs.values() for job in group if job.key in mine}
    there = {key for key in by_key if ledger.record(key)}
    outcomes = [_kept(run_of, by_key[key], Ended(key=key), options) for key in by_key if key in there]
    waiting = [placed for placed in booked if placed.key not in there]
    for key, cluster_id in executor.start(waiting).items():
        ledger.note_cluster_id(_booking(run_of, by_key[key], cluster_id))
    remaining = Remaining.of(ledger, [by_key[placed.key] for placed in waiting])
    for placed in waiting:
        options.say(placed.key, executor.states().get(placed.key, "started"))
    for ended in executor.ended():
        outcome = _kept(run_of, by_key[ended.key], ended, options)
        remaining.ended(ended.key)
        options.say(ended.key, _told(outcome, ended) + remaining.told())
        outcomes.append(outcome)
    return outcomes


def _kept(run_of: FleetRun, job: Job, ended: Ended, options: RunOptions) -> Outcome:
    """What a job came to. A record counts even where its job was lost after it was written."""
    ledger = options.ledger
    if ended.judged:
        with ledger.judging(job.key):
            ledger.commit(ended.judged)
    outcome = _outcome(job, ledger, ended.cause or "it ended without a record")
    if outcome.verdict is None:
        ledger.put_aside(job.key)
        failure = Failure(key=job.key, run=run_of.id, at=datetime.now(UTC), cause=outcome.cause, node=ended.node)
        ledger.fail(failure)
    options.keep(outcome)
    return outcome


def _outcome(job: Job, ledger: Ledger, lost: str) -> Outcome:
    """The record of a job. Its evidence is judged here, by the claims that the job was given. `lost`: if there is none.

    Evidence that can't be used is a failure of its job alone: the others go on.
    """
    record = ledger.record(job.key)
    if record is None:
        return Outcome(job=job, cause=lost)
    try:
        return Outcome(job=job, record=record, verdict=judged(ledger, record, job, job.claim_set))
    except UserError as error:
        return Outcome(job=job, cause=str(error.problems[0]))


def _told(outcome: Outcome, ended: Ended) -> str:
    if outcome.record is None or outcome.verdict is None:
        return f"no verdict: {outcome.cause[:_LINE]}"
    where = outcome.record.worker.node
    return f"{outcome.verdict.overall} on {where} in {outcome.record.seconds:.0f} s"


@dataclass(kw_only=True)
class Remaining:
    """How long the rest may take, from what the same jobs took before, else from the median of all."""

    expected: dict[str, float]
    """Key -> seconds."""
    began: datetime
    done: float = 0.0
    """Seconds of work that ended since."""

    @classmethod
    def of(cls, ledger: Ledger, jobs: Sequence[Job]) -> Remaining:
        took: dict[tuple[object, ...], float] = {}
        for record in ledger.records():
            took[record.line.image, tuple(record.line.tiers), len(record.line.gpus)] = record.seconds
        usual = median(took.values()) if took else 0.0
        expected = {job.key: took.get((job.image, job.tiers, job.gpus), usual) for job in jobs}
        return cls(expected=expected, began=datetime.now(UTC))

    def ended(self, key: str) -> None:
        self.done += self.expected.pop(key, 0.0)

    def told(self) -> str:
        """`; 3 wait or run, about 4 min`: at the pace so far. Without earlier records no time is given."""
        if not self.expected:
            return ""
        elapsed = (datetime.now(UTC) - self.began).total_seconds()
        left = sum(self.expected.values())
        pace = f", about {left * elapsed / self.done / 60:.0f} min" if self.done and left else ""
        return f"; {len(self.expected)} wait or run{pace}"
