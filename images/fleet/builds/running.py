"""The builds of one command, booked and kept in a ledger: `--resume` takes over what a killed submitter left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from images.errors import Problem, UserError
from images.fleet import booking, resuming
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
    resumes: bool = False
    """Whether what dead runs left of the jobs is taken over."""
    wheel_mirror: str = ""
    """The URL that the jobs know by its digest."""

    def outcomes(
        self, jobs: Sequence[BuildJob], judge: Callable[[BuildEnd], OutcomeT | UserError]
    ) -> list[OutcomeT | UserError]:
        """What `judge` makes of each job: of those that are built already, then of the others as they end.

        A run has ended once each of its jobs was judged, by whomever. What was begun is cancelled on any way out.
        Raises UserError.
        """
        by_key = {job.key: job for job in jobs}
        placed = self._placed(by_key)  # before anything is booked: it may raise
        self.ledger.note(by_key.values())  # before the run names them: `--resume` reads them
        with self.ledger.running(self.run_of):
            taken = self._taken(by_key)
            self.ledger.note_run(self.run_of)
            built = self.ledger.records_of(taken)
            waiting = [replace(placed[key], cluster_id=taken[key].cluster_id) for key in taken if key not in built]
            remaining = Remaining.of({one.key: by_key[one.key].image for one in waiting}, self.took)
            with booking.handed_over(self.ledger, self.run_of, taken, self.submission.executor) as started:
                self.submission.start(waiting, started, remaining.before)
                ends = chain(_told(by_key, taken, built), self._ended(by_key, taken, remaining))
                outcomes = [self._judged(end, judge) for end in ends]
        self.ledger.end_runs(by_key)
        return outcomes

    def _placed(self, jobs: Jobs) -> dict[str, Placed]:
        ledger = str(self.ledger.folder.absolute())
        return {
            key: submitting.placed(job, self.submission, ledger=ledger, wheel_mirror=self.wheel_mirror)
            for key, job in jobs.items()
        }

    def _taken(self, jobs: Jobs) -> dict[str, Booking]:
        ledger, outdated, say, resumes = self.ledger, self.outdated, self.submission.say, self.resumes
        asked = [
            (key, booking.take(ledger, self.run_of, job, outdated, say, resumes=resumes)) for key, job in jobs.items()
        ]
        return {key: mine for key, mine in asked if mine}

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

    def _judged(self, end: BuildEnd, judge: Callable[[BuildEnd], OutcomeT | UserError]) -> OutcomeT | UserError:
        """What is made of a job. A record that is of no use is put aside."""
        outcome = judge(end)
        if isinstance(outcome, UnusableError):
            self.ledger.put_aside(end.job.key)
        elif isinstance(end.result, BuildResult) and not isinstance(outcome, UserError):
            self.ledger.note_judged(end.result)
        return outcome


def _told(jobs: Jobs, taken: Taken, built: Mapping[str, BuildResult]) -> Iterator[BuildEnd]:
    """The jobs that nobody waits for: others have them, or they are built."""
    for key, job in jobs.items():
        if key not in taken:
            yield BuildEnd(job=job, result=_elsewhere(job))
    for key, result in built.items():
        yield BuildEnd(job=jobs[key], result=result)


def left_run(ledger: BuildLedger, keys: Sequence[str], executor: str) -> FleetRun:
    """The newest run that left any of these jobs. Raises UserError: there is none; else as resuming.newest_left."""
    ledger.end_runs(keys)  # one that was killed between its last job and its end
    found = resuming.newest_left(ledger, executor, keys)
    if found:
        return found
    done = sum(map(ledger.done, keys))
    cause = f"no run in {ledger.folder} left these jobs" + (f": {done} of {len(keys)} judged" if done else "")
    then = "without --resume they are built; another checkout, or other options, make other jobs"
    raise UserError(Problem(where="--resume", cause=cause, then=then))


def _elsewhere(job: BuildJob) -> ElsewhereError:
    cause = "another process booked it in the same folder"
    then = "that process names it there; if it fails or was killed, give this command again with --resume"
    return ElsewhereError(Problem(where=job.key, cause=cause, then=then), code=1)
