"""A row of the tables that profiles' claims are written from."""

from __future__ import annotations

from dataclasses import dataclass

from validate.claims import Tier
from validate.contracts.profile import BehaviourExpect


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What a profile's image must do."""

    profiles: tuple[str, ...]
    probe: str
    statement: str
    tier: Tier = Tier.CPU
    needs: tuple[str, ...] = ()
    """Pins without which there is nothing to claim."""
    without_nvcc: str = ""
    """Why it can't be had of an image without nvcc: there it is UNPROVEN, and not required."""
    expect: BehaviourExpect
