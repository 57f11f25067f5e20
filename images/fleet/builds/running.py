"""The builds of one command, booked and kept in a ledger: `--resume` takes over what a killed submitter left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import TypeVar

from images.errors import Problem, UserError
from images.fleet import booking
from images.fleet.builds import submitting
from images.fleet.builds.ledger import BuildLedger
from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.builds.submitting import UnusableError
from images.fleet.executors.executor import Ended, Placed
from images.fleet.model import Booking, FleetRun
from images.fleet.remaining import Remaining
from images.fleet.submission import Submission

OutcomeT = TypeVar("OutcomeT")

Jobs = Mapping[str, BuildJob]
"""Key -> job."""
Taken = Mapping[str, Booking]
"""Key -> booking, of the jobs that are this run's."""


@dataclass(frozen=True, kw_only=True)
class BuildEnd:
    """A job with the image that a worker built, or why there is none."""

    job: BuildJob
    result: BuildResult | UserError
    left: str = ""
    """`; 2 wait or run, about 3 min`: of the other jobs."""


class ElsewhereError(UserError):
    """Another process builds the job."""


@dataclass(frozen=True, kw_only=True)
class BuildRun:
    """A run, and what its jobs need."""

    run_of: FleetRun
    ledger: BuildLedger
    submission: Submission
    """Of the run's ID."""
    took: Mapping[str, float]
    """Image -> seconds that it took before."""
    outdated: Mapping[str, BuildResult] = field(default_factory=dict)
    """Job's key -> its record that is to be made anew. All others answer for their jobs."""
    wheel_mirror: str = ""
    """The URL that the jobs know by its digest."""

    def outcomes(
        self, jobs: Sequence[BuildJob], judge: Callable[[BuildEnd], OutcomeT | UserError]
    ) -> list[OutcomeT | UserError]:
        """What `judge` makes of each job: of those that are built already, then of the others as they end.

        The run has ended once each of its jobs was judged. What was begun is cancelled on any way out.
        Raises UserError.
        """
        by_key = {job.key: job for job in jobs}
        placed = self._placed(by_key)  # before anything is booked: it may raise
        self.ledger.note(by_key.values())  # before the run names them: `--resume` reads them
        with self.ledger.running(self.run_of) as noted:
            run_of = _with_jobs(self.run_of, noted)
            taken = self._taken(by_key)
            self.ledger.note_run(run_of)
            built = self.ledger.records_of(taken)
            waiting = [replace(placed[key], cluster_id=taken[key].cluster_id) for key in taken if key not in built]
            remaining = Remaining.of({one.key: by_key[one.key].image for one in waiting}, self.took)
            with booking.handed_over(self.ledger, run_of, taken, self.submission.executor) as started:
                self.submission.start(waiting, started, remaining.before)
                ends = chain(_told(by_key, taken, built), self._ended(by_key, taken, remaining))
                outcomes, judged = self._judged(ends, judge)
            if judged >= set(run_of.jobs):
                self.ledger.note_run(run_of.model_copy(update={"ended": datetime.now(UTC)}))
        return outcomes

    def _placed(self, jobs: Jobs) -> dict[str, Placed]:
        ledger = str(self.ledger.folder.absolute())
        return {
            key: submitting.placed(job, self.submission, ledger=ledger, wheel_mirror=self.wheel_mirror)
            for key, job in jobs.items()
        }

    def _taken(self, jobs: Jobs) -> dict[str, Booking]:
        say = self.submission.say
        asked = {key: booking.take(self.ledger, self.run_of, job, self.outdated, say) for key, job in jobs.items()}
        return {key: mine for key, mine in asked.items() if mine}

    def _ended(self, jobs: Jobs, taken: Taken, remaining: Remaining) -> Iterator[BuildEnd]:
        executor, began = self.submission.executor, time.monotonic()
        for ended in executor.ended():
            remaining.ended([ended.key])
            left = remaining.told(executor.running(), time.monotonic() - began)
            yield BuildEnd(job=jobs[ended.key], result=self._kept(ended, taken[ended.key]), left=left)

    def _kept(self, ended: Ended, mine: Booking) -> BuildResult | UserError:
        """What a job came to. A record counts even where its job was lost after it was written."""
        if record := self.ledger.record(ended.key):
            return record
        watched = ended.result is not None and ended.result.run == mine.submitted_by
        found = submitting.result_of(ended, mine.submitted_by if watched else self.run_of.id)
        if isinstance(found, BuildResult):  # of a worker that does not see the ledger
            self.ledger.commit(found)
        return found

    def _judged(
        self, ends: Iterable[BuildEnd], judge: Callable[[BuildEnd], OutcomeT | UserError]
    ) -> tuple[list[OutcomeT | UserError], set[str]]:
        """What is made of the jobs, and the keys of those that were judged. A record that is of no use is put aside."""
        outcomes, judged = list[OutcomeT | UserError](), set[str]()
        for end in ends:
            outcome = judge(end)
            outcomes.append(outcome)
            if isinstance(outcome, UnusableError):
                self.ledger.put_aside(end.job.key)
            elif isinstance(end.result, BuildResult) and not isinstance(outcome, UserError):
                judged.add(end.job.key)
        return outcomes, judged


def _told(jobs: Jobs, taken: Taken, built: Mapping[str, BuildResult]) -> Iterator[BuildEnd]:
    """The jobs that nobody waits for: others have them, or they are built."""
    for key, job in jobs.items():
        if key not in taken:
            yield BuildEnd(job=job, result=_elsewhere(job))
    for key, result in built.items():
        yield BuildEnd(job=jobs[key], result=result)


def resumed(ledger: BuildLedger, jobs: Sequence[BuildJob], executor: str) -> FleetRun:
    """The newest run that left any of these jobs on this executor, to go on with by this process.

    Raises UserError: there is none, or it lives.
    """
    keys = [job.key for job in jobs]
    runs = [one for one in ledger.runs() if set(keys) & set(one.jobs)]
    unended = [one for one in runs if one.ended is None]
    if not unended:
        ended = f": {runs[-1].id} has ended" if runs else ""
        cause = f"no run in {ledger.folder} left these jobs{ended}"
        then = "without --resume they are built; another checkout, or other options, make other jobs"
        raise UserError(Problem(where="--resume", cause=cause, then=then), code=1)
    last = _newest_left(ledger, unended, executor)
    others = (key for key in keys if key not in last.jobs)
    return last.model_copy(update={"owner": booking.owner(), "jobs": (*last.jobs, *others)})


def _newest_left(ledger: BuildLedger, unended: Sequence[FleetRun], executor: str) -> FleetRun:
    """Raises UserError."""
    left = [one for one in unended if not ledger.lives(one.id)]
    here = [one for one in left if one.executor == executor]
    if here:
        return here[-1]
    if left:
        last = left[-1]
        cause, then = f"{last.id} was on {last.executor}", f"add --on {last.executor}; without --resume all is built"
        raise UserError(Problem(where=f"--on {executor}", cause=cause, then=then))
    cause, then = f"{unended[-1].id} goes on: {unended[-1].owner}", "wait for its end, or end that process"
    raise UserError(Problem(where="--resume", cause=cause, then=then), code=1)


def without_record(ledger: BuildLedger, run_of: FleetRun) -> list[str]:
    """Keys of a run's jobs that nobody has built."""
    return [key for key in run_of.jobs if ledger.record(key) is None]


def _with_jobs(run_of: FleetRun, noted: FleetRun | None) -> FleetRun:
    """A run with the jobs that are noted of it, too."""
    known = noted.jobs if noted else ()
    return run_of.model_copy(update={"jobs": (*known, *(key for key in run_of.jobs if key not in known))})


def _elsewhere(job: BuildJob) -> ElsewhereError:
    cause = "another process builds it into the same folder"
    then = "that process names it there; if it fails, give this command again with --resume"
    return ElsewhereError(Problem(where=job.key, cause=cause, then=then), code=1)
