"""Where jobs run: in this process, on Slurm through submitit, on Ray. Queues, retries and placement are theirs."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from images.errors import UserError, failed
from images.fleet import worker
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

    def ended(self) -> Iterator[Ended]:
        """Each job once, as it ends. Blocks."""

    def cancel(self) -> None:
        """End every job that was started here and has not ended. Called on any way out, more than once."""


class LocalExecutor:
    """In this process, one job after another: this machine's engine, and nothing to install."""

    name = "local"

    def __init__(self) -> None:
        self._waiting: list[Placed] = []

    def start(self, jobs: Sequence[Placed]) -> Mapping[str, str]:
        self._waiting += jobs
        return {}

    def ended(self) -> Iterator[Ended]:
        while self._waiting:
            job = self._waiting.pop(0)
            try:
                result = worker.perform(job.task)
                yield Ended(key=job.key, node=result.record.worker.node, result=result)
            except UserError as error:
                yield Ended(key=job.key, node=worker.node(), cause=str(error.problems[0]))

    def cancel(self) -> None:
        self._waiting.clear()


def library(name: str) -> Any:
    """submitit or ray, which only their executors need. Raises UserError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        extra = {"submitit": "slurm"}.get(name, name)
        then = f"`pip install 'truetag[{extra}]'`, or in a checkout `pip install {name}`"
        raise failed(f"--on {extra}", f"needs the package {name}", then) from None
