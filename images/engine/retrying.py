"""Repeats a build or a push that failed for a transient error, after pauses that double."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from images.engine.buildkit import BuildEvent, Retrying

T = TypeVar("T")

_BACKOFF = 5.0  # seconds before the second attempt; doubled before each further one


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How often something is tried, and how the time between is spent. `sleep` gets seconds."""

    attempts: int
    sleep: Callable[[float], object]
    on_event: Callable[[BuildEvent], None]

    def run(self, attempt: Callable[[], T], transient: Callable[[Exception], str]) -> T:
        """The result of the first attempt that succeeds.

        `transient`: the cause of an error that may pass, empty for any other. Raises what the last attempt raised.
        """
        for number in range(2, self.attempts + 1):
            try:
                return attempt()
            except Exception as error:
                if not (cause := transient(error)):
                    raise
                delay = _BACKOFF * 2 ** (number - 2)
                self.on_event(Retrying(attempt=number, of=self.attempts, delay=delay, cause=cause))
                self.sleep(delay)
        return attempt()
