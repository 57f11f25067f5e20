"""Jobs handed to workers by one command, and what counts of their answers. The ledger's jobs are in run.py."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from images.config import paths
from images.config.platforms import Platform
from images.errors import Problem, UserError
from images.fleet.config import Fleet
from images.fleet.executors.executor import Ended, Executor, Placed
from images.fleet.results import JobResult
from images.fleet.task import Task

_Result = TypeVar("_Result", bound=JobResult)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The workers, and what all jobs of one command share."""

    fleet: Fleet
    executor: Executor
    run: str
    say: Callable[[str, str], None]
    """Gets a job's key and a sentence."""

    @classmethod
    def new(cls, fleet: Fleet, executor: Executor, say: Callable[[str, str], None]) -> Submission:
        return cls(fleet=fleet, executor=executor, run=uuid.uuid4().hex, say=say)

    def placed(self, key: str, task: Task, platform: Platform, image: str) -> Placed:
        """A job that needs no GPU, with its machines. Raises UserError: fleet.yaml has none of its platform."""
        fleet = machines(self.fleet, platform, image)
        return Placed(key=key, task=task, gpus=0, machines=fleet.plain, on=fleet.workers[fleet.plain])

    def start(
        self,
        jobs: Sequence[Placed],
        started: Callable[[Mapping[str, str]], None] = lambda _cluster_ids: None,
        about: Callable[[str], str] = lambda _key: "",
    ) -> None:
        """Hand the jobs over, and tell how they are. The caller cancels them on any way out. Raises UserError.

        `started` gets key -> what the job is called on the cluster; `about` (key -> text) ends a job's line.
        """
        started(self.executor.start(jobs) if jobs else {})
        states = self.executor.states()
        for job in jobs:
            self.say(job.key, states.get(job.key, "started") + about(job.key))

    def ends(self, jobs: Sequence[Placed]) -> Iterator[Ended]:
        """Each job once, as it ends. What was begun is cancelled on any way out. Raises UserError."""
        try:
            self.start(jobs)
            yield from self.executor.ended()
        finally:
            self.executor.cancel()


def machines(fleet: Fleet, platform: Platform, image: str) -> Fleet:
    """Those of a platform. Raises UserError: fleet.yaml has none."""
    found = fleet.of(platform)
    if not found.workers:
        then = "add one with `platform:` to fleet.yaml"
        raise UserError(Problem(where=image, cause=f"no machine of the fleet is {platform}", then=then))
    return found


def answer_of(ended: Ended, run: str, kind: type[_Result], then: str) -> _Result | UserError:
    """What a worker gave back to a job of this run, or why it gave nothing. `then`: what helps where it was lost.

    A Slurm that was set up anew counts jobs from 1 again: a file of an earlier run can bear the number of a new job.
    """
    found = ended.result
    if found is None:
        cause = f"its worker gave no result: {ended.cause or 'it ended'}"
        return UserError(Problem(where=ended.key, cause=cause, then=then), code=1)
    if not isinstance(found, kind) or (found.key, found.run) != (ended.key, run):
        cause = f"its result is of another job: {found.key} of run {found.run[:8]}"
        then = "take the folder `slurm` of --out away, or name another --out; then give the same command again"
        return UserError(Problem(where=ended.key, cause=cause, then=then), code=1)
    return found


def matrix_file() -> str:
    """The matrix as a task names it: empty for the checkout's own, which the worker has."""
    matrix = paths.workspace().matrix
    return str(matrix) if matrix != paths.RESOURCES / paths.MATRIX_NAME else ""
