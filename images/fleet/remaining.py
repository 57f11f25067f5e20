"""How long the jobs of a run may still take, from what such jobs took before. Pure: the caller has the clock."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

Kind = TypeVar("Kind", bound=Hashable)


def expected(kinds: Mapping[str, Kind], took: Mapping[Kind, float]) -> dict[str, float]:
    """Key -> seconds, of jobs (key -> kind): what their kind took before, else the median of all; 0: none is known."""
    usual = median(took.values()) if took else 0.0
    return {key: took.get(kind, usual) for key, kind in kinds.items()}


def seconds_left(left: Mapping[str, float], running: Mapping[str, float], at_once: float) -> float:
    """Until the last of these jobs ends, if so many run at once and no queue is longer.

    `left`: key -> seconds that it takes; `running`: key -> seconds that it has run.
    """
    each = [max(seconds - running.get(key, 0.0), 0.0) for key, seconds in left.items()]
    return max(max(each), sum(each) / at_once)


def about(seconds: float) -> str:
    """`about 4 min`, rounded up."""
    return f"about {max(math.ceil(seconds / 60), 1)} min"


@dataclass(kw_only=True)
class Remaining:
    """The jobs that have not ended."""

    left: dict[str, float]
    """Key -> seconds that it takes, by earlier records."""
    done: float = 0.0
    """Seconds of those that ended, by the same records."""
    at_once: int = 0
    """How many were seen to run side by side."""

    @classmethod
    def of(cls, kinds: Mapping[str, Kind], took: Mapping[Kind, float]) -> Remaining:
        return cls(left=expected(kinds, took))

    def before(self, key: str) -> str:
        """`; takes about 4 min`, for a job that is handed over."""
        seconds = self.left.get(key)
        return f"; takes {about(seconds)}" if seconds else ""

    def ended(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.done += self.left.pop(key, 0.0)

    def told(self, running: Mapping[str, float], elapsed: float) -> str:
        """`; 3 wait or run, about 4 min`. Without earlier records no time is given.

        `running` (key -> seconds so far) has what the executor knows to run. Where it knows nothing, as on Ray, as many
        run at once as the work that was done since (`elapsed` seconds) says.
        """
        if not self.left:
            return ""
        self.at_once = max(self.at_once, len(running))
        rate = self.at_once or (self.done / elapsed if elapsed else 0.0)
        time = f", {about(seconds_left(self.left, running, rate))}" if rate and any(self.left.values()) else ""
        return f"; {len(self.left)} wait or run{time}"
