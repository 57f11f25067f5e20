"""One run of a fleet: book jobs, hand them to an executor, keep what comes back. Whatever ends it, nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from images.config import paths
from images.errors import UserError
from images.fleet import booking
from images.fleet.config import Fleet
from images.fleet.executors.executor import Ended, Executor, Placed
from images.fleet.judging import judged
from images.fleet.ledger import Ledger
from images.fleet.model import Booking, Failure, FleetRecord, FleetRun, Job
from images.fleet.remaining import Remaining
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
    outdated: Mapping[str, FleetRecord] = field(default_factory=dict)
    """Job's key -> its record that the plan found too old, or not good enough. All others answer for their jobs."""
    resumes: bool = False
    """Whether the jobs are those that a dead run left."""
    keep: Callable[[Outcome], None] = lambda _outcome: None
    """Gets each outcome as it comes, while its job is booked."""


def run(run_of: FleetRun, jobs: Mapping[str, Sequence[Job]], options: RunOptions) -> tuple[Outcome, ...]:
    """Judge the jobs (machines -> jobs) that nobody else has. Raises UserError, KeyboardInterrupt after cleaning up."""
    ledger = options.ledger
    ledger.note(job for group in jobs.values() for job in group)  # before the run names them: --resume reads them
    with ledger.running(run_of):
        taken = _taken(run_of, jobs, options)
        ledger.note_run(run_of)
        outcomes = list[Outcome]()
        with booking.handed_over(ledger, run_of, taken, options.executor) as started:
            for outcome in _judged(run_of, jobs, taken, options, started):
                outcomes.append(outcome)
    ledger.end_runs(run_of.jobs)
    return tuple(outcomes)


def _taken(run_of: FleetRun, jobs: Mapping[str, Sequence[Job]], options: RunOptions) -> dict[str, Booking]:
    asked = [job for group in jobs.values() for job in group]
    ledger, outdated, say, resumes = options.ledger, options.outdated, options.say, options.resumes
    taken = {job.key: booking.take(ledger, run_of, job, outdated, say, resumes=resumes) for job in asked}
    return {key: mine for key, mine in taken.items() if mine}


def _placed(run_of: FleetRun, machines: str, job: Job, mine: Booking, options: RunOptions) -> Placed:
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
    return Placed(
        key=job.key,
        task=assignment,
        gpus=job.gpus,
        machines=machines,
        on=options.fleet.workers[machines],
        cluster_id=mine.cluster_id,
    )


def _judged(
    run_of: FleetRun,
    jobs: Mapping[str, Sequence[Job]],
    taken: Mapping[str, Booking],
    options: RunOptions,
    started: Callable[[Mapping[str, str]], None],
) -> Sequence[Outcome]:
    ledger, executor = options.ledger, options.executor
    by_key = {job.key: job for group in jobs.values() for job in group if job.key in taken}
    booked = [
        _placed(run_of, machines, job, taken[job.key], options)
        for machines, group in jobs.items()
        for job in group
        if job.key in taken
    ]
    there = {key for key in by_key if ledger.record(key)}
    waiting = [placed for placed in booked if placed.key not in there]
    started(executor.start(waiting))
    outcomes = [_kept(run_of, by_key[key], Ended(key=key), options) for key in by_key if key in there]
    remaining, began = _remaining(ledger, [by_key[placed.key] for placed in waiting]), time.monotonic()
    states = executor.states()
    for placed in waiting:
        options.say(placed.key, states.get(placed.key, "started") + remaining.before(placed.key))
    for ended in executor.ended():
        outcome = _kept(run_of, by_key[ended.key], ended, options)
        remaining.ended([ended.key])
        options.say(ended.key, _told(outcome, ended) + remaining.told(executor.running(), time.monotonic() - began))
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
    if outcome.record and outcome.verdict is not None:
        ledger.note_judged(outcome.record)
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


def _remaining(ledger: Ledger, jobs: Sequence[Job]) -> Remaining:
    """By what the same tiers of the same images took before."""
    records = sorted(ledger.records(), key=lambda record: record.ended)
    took = {(one.line.image, tuple(one.line.tiers), len(one.line.gpus)): one.seconds for one in records}
    return Remaining.of({job.key: (job.image, job.tiers, job.gpus) for job in jobs}, took)
