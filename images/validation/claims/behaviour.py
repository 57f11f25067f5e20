"""A row of the tables that profiles' claims are written from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from validate.claims import Tier

if TYPE_CHECKING:
    from validate.checks._behaviour import BehaviourExpect


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What a profile's image must do."""

    profiles: tuple[str, ...]
    probe: str
    statement: str
    tier: Tier = Tier.CPU
    needs: tuple[str, ...] = ()
    """Pins without which there is nothing to claim."""
    extensions: str = ""
    """The package whose compiled extensions it takes: without them it is UNPROVEN, and not required."""
    without_nvcc: str = ""
    """Why it can't be had without those extensions and without nvcc, which compiles them on first use."""
    expect: BehaviourExpect
