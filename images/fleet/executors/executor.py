"""What every executor does: take jobs, tell which have ended, give them up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from images.fleet.config import WorkerType
from images.fleet.model import JobResult
from images.fleet.worker import Task


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A job with the machines that do it."""

    key: str
    task: Task
    gpus: int
    machines: str
    """Their name in fleet.yaml."""
    on: WorkerType
    cluster_id: str = ""
    """What a dead run's submission of this job is called on the cluster: if it goes on, it is watched, not repeated."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A job that came to an end. Without a cause it has a record: that of the result, else the one in the folder."""

    key: str
    cause: str = ""
    node: str = ""
    result: JobResult | None = None


class Executor(Protocol):
    """Runs jobs. Raises UserError where its engine can't be had."""

    name: str

    def start(self, jobs: Sequence[Placed]) -> Mapping[str, str]:
        """Hand the jobs over. Returns key -> what the job is called there."""
        ...

    def ended(self) -> Iterator[Ended]:
        """Each job once, as it ends. Blocks."""
        ...

    def states(self) -> Mapping[str, str]:
        """Key -> `runs on n1`, `waits (Resources)`, of the jobs that have not ended."""
        ...

    def running(self) -> Mapping[str, float]:
        """Key -> seconds since it began, of the jobs that are known to run; none where the cluster does not tell."""
        ...

    def cancel(self) -> None:
        """End every job that was started here and has not ended. Called on any way out, more than once."""
        ...
