"""In this process, one job after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from images.errors import UserError
from images.fleet import worker
from images.fleet.executors import Ended, Placed
from images.fleet.worker import TaskContext


class LocalExecutor:
    """This machine's engine, and nothing to install."""

    name = "local"

    def __init__(self) -> None:
        self._waiting: list[Placed] = []

    def start(self, jobs: Sequence[Placed]) -> Mapping[str, str]:
        self._waiting += jobs
        return {}

    def ended(self) -> Iterator[Ended]:
        while self._waiting:
            job = self._waiting[0]
            try:
                result = worker.perform(job.task, TaskContext())
                ended = Ended(key=job.key, node=result.record.worker.node, result=result)
            except UserError as error:
                ended = Ended(key=job.key, node=worker.node(), cause=str(error.problems[0]))
            self._waiting.pop(0)
            yield ended

    def states(self) -> Mapping[str, str]:
        return {job.key: "waits" if number else "runs here" for number, job in enumerate(self._waiting)}

    def cancel(self) -> None:
        self._waiting.clear()
