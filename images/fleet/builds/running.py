"""The builds of one command, booked and kept in a ledger: `--resume` takes over what a killed submitter left."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from images.errors import Problem, UserError
from images.fleet import booking
from images.fleet.booking import Taken
from images.fleet.builds import submitting
from images.fleet.builds.ledger import BuildLedger
from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.executors.executor import Ended
from images.fleet.model import FleetRun
from images.fleet.remaining import Remaining
from images.fleet.submission import Submission


@dataclass(frozen=True, kw_only=True)
class BuildEnd:
    """A job with the image that a worker built, or why there is none."""

    job: BuildJob
    result: BuildResult | UserError
    left: str = ""
    """`; 2 wait or run, about 3 min`: of the other jobs."""


@dataclass(frozen=True, kw_only=True)
class BuildRun:
    """A run, and what its jobs need."""

    run_of: FleetRun
    ledger: BuildLedger
    submission: Submission
    """Of the run's ID."""
    took: Mapping[str, float]
    """Image -> seconds that it took before."""

    def ends(self, jobs: Sequence[BuildJob]) -> Generator[BuildEnd]:
        """Each job once: those that are built already, then the others as they end.

        What was begun is cancelled on any way out. Raises UserError.
        """
        by_key = {job.key: job for job in jobs}
        self.ledger.note(by_key.values())  # before the run names them: `--resume` reads them
        with self.ledger.running(self.run_of):
            taken: dict[str, Taken] = {}
            try:
                for job in by_key.values():
                    mine = booking.take(self.ledger, self.run_of, job, self.submission.say)
                    if mine:
                        taken[job.key] = mine
                    else:
                        yield BuildEnd(job=job, result=_left_to_another(job))
                yield from self._ends(by_key, taken)
            finally:
                self.submission.executor.cancel()
                for key in taken:
                    self.ledger.release(key, self.run_of.id)
            if not without_record(self.ledger, self.run_of):
                self.ledger.end(self.run_of.model_copy(update={"ended": datetime.now(UTC)}))

    def _ends(self, by_key: Mapping[str, BuildJob], taken: Mapping[str, Taken]) -> Generator[BuildEnd]:
        there = {key: record for key in taken if (record := self.ledger.record(key))}
        for key, record in there.items():
            yield BuildEnd(job=by_key[key], result=record)
        waiting = [key for key in taken if key not in there]
        if not waiting:
            return
        remaining, began = Remaining.of({key: by_key[key].image for key in waiting}, self.took), time.monotonic()
        ledger = str(self.ledger.folder.absolute())
        placed = [
            replace(submitting.placed(by_key[key], self.submission, ledger), cluster_id=taken[key].cluster_id)
            for key in waiting
        ]
        for ended in self.submission.ends(placed, self._note_cluster_ids, remaining.before):
            remaining.ended([ended.key])
            left = remaining.told(self.submission.executor.running(), time.monotonic() - began)
            yield BuildEnd(job=by_key[ended.key], result=self._kept(ended, taken[ended.key]), left=left)

    def _note_cluster_ids(self, ids: Mapping[str, str]) -> None:
        for key, cluster_id in ids.items():
            self.ledger.note_cluster_id(booking.booking(self.run_of, key, cluster_id))

    def _kept(self, ended: Ended, mine: Taken) -> BuildResult | UserError:
        """What a job came to. A record counts even where its job was lost after it was written."""
        if record := self.ledger.record(ended.key):
            return record
        watched = ended.result is not None and ended.result.run == mine.run
        found = submitting.result_of(ended, mine.run if watched else self.run_of.id)
        if isinstance(found, BuildResult):  # of a worker that does not see the ledger
            with self.ledger.judging(ended.key):
                self.ledger.commit(found)
        return found


def resumed(ledger: BuildLedger, jobs: Sequence[BuildJob], executor: str) -> FleetRun:
    """The last run of any of these jobs, to go on with by this process. Raises UserError: it left nothing, or lives."""
    keys = [job.key for job in jobs]
    runs = [one for one in ledger.runs() if set(keys) & set(one.jobs)]
    if not runs or runs[-1].ended:
        ended = f": {runs[-1].id} has ended" if runs else ""
        cause = f"no run in {ledger.folder} left these jobs{ended}"
        then = "without --resume they are built; another checkout, or other options, make other jobs"
        raise UserError(Problem(where="--resume", cause=cause, then=then), code=1)
    (*_, last) = runs
    if ledger.lives(last.id):
        cause, then = f"{last.id} goes on: {last.owner}", "wait for its end, or end that process"
        raise UserError(Problem(where="--resume", cause=cause, then=then), code=1)
    if last.executor != executor:
        cause, then = f"{last.id} was on {last.executor}", f"add --on {last.executor}; without --resume all is built"
        raise UserError(Problem(where=f"--on {executor}", cause=cause, then=then))
    others = [key for key in keys if key not in last.jobs]
    return last.model_copy(update={"owner": booking.owner(), "jobs": (*last.jobs, *others)})


def without_record(ledger: BuildLedger, run_of: FleetRun) -> list[str]:
    """Keys of a run's jobs that nobody has built since it began."""
    records = {key: ledger.record(key) for key in run_of.jobs}
    return [key for key, record in records.items() if record is None or record.ended < run_of.started]


def _left_to_another(job: BuildJob) -> UserError:
    cause = "another process builds it into the same folder"
    then = "give the command again when that has ended, or name another --out"
    return UserError(Problem(where=job.key, cause=cause, then=then), code=1)
