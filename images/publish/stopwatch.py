"""How long the stages of a publication take."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Stopwatch:
    """Seconds of each stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)

    def lap(self, stage: str) -> None:
        """A stage that comes again, for another image say, adds to its seconds."""
        now = time.monotonic()
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + now - self._since, 1)
        self._since = now
