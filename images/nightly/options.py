"""How a nightly run goes: what is injected into it, and what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from images.config import paths
from images.config.matrix import Sources
from images.locking import uv
from images.nightly.canary import Locked
from images.nightly.state import State, Trial
from validate.claims import Tier

Judge = Callable[[Locked, Sequence[Tier], str], Trial]
"""Builds these versions and validates these tiers (none: all that the machine can), under a name with this suffix.

Raises UserError for a failure that the versions did not cause: a network, a disk, an engine.
"""


@dataclass(frozen=True, kw_only=True)
class NightlyOptions:
    """What a nightly run works with. The judge, the resolver and the clock are injected."""

    sources: Sources
    judge: Judge
    state: State
    now: Callable[[], datetime]
    results: Path = field(default_factory=lambda: paths.workspace().results / "nightly")
    ranges: Mapping[str, str] = field(default_factory=dict)
    """Distribution -> range, over the matrix's, for this run."""
    tiers: Sequence[Tier] = ()
    run: uv.Runner = uv.run
    locks: Path = field(default_factory=lambda: paths.workspace().locks)
    tell: Callable[[str, str], None] = lambda _image, _text: None
    at_once: int = 1
    """Sets of versions that a bisection tries side by side."""
    cancel: Callable[[], None] = lambda: None
    """Ends every trial that goes on."""

    def remembered(self, key: str, work: Callable[[], Trial]) -> Trial:
        """A trial, made once: what this run or the one it resumes has validated is taken from the state."""
        known = self.state.find(key)
        if known is not None:
            return Trial.model_validate(known)
        made = work()
        self.state.keep(key, made.model_dump(mode="json"))
        return made
