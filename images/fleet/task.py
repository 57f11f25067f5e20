"""What an executor runs on a machine: plain data in, a result out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from images.engine.runtime import Runtime
from images.fleet.model import Judged


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """Where a task runs."""

    id: str = ""
    """Slurm's job or Ray's task."""
    machine: str = ""
    """Its name in the record; empty: the machine's own."""
    on_engine: Callable[[Runtime], None] = lambda _engine: None
    """Gets the engine, to cancel what goes on in it."""


class Task(Protocol):
    """A job, and what the worker must know beside it. It is sent to another machine. Raises UserError."""

    def elsewhere(self) -> Self:
        """For a machine that sees neither this one's checkout nor its folders."""
        ...

    def perform(self, context: TaskContext) -> Judged:
        """Do it, and give back what came of it."""
        ...

    def perform_and_keep(self, context: TaskContext) -> str:
        """The same where the submitter's folders are seen. A name: of the machine that kept the record there."""
        ...
