"""What a row of the examples' tables says: how to run an example, and what its result may deviate. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from validate.claims import Tier

if TYPE_CHECKING:
    from validate.checks._behaviour import BehaviourExpect


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far from plain torch in float32 a run may be. Losses and logits are in their own units, about 6 and 5."""

    losses: float
    """Of each step. The Trainer rounds what it logs to four digits."""
    update: float
    """Of the weights' change, relative to its size. AdamW divides by small numbers, so it is larger than a loss's."""
    reload: float
    """Of the logits of the saved result, loaded again by the framework."""
    held_out: float | None = None
    """Between the loss that the example measured itself and that of the saved result, loaded again. None: it measures
    none."""
    merge: float = 1e-5
    """Of merged weights, from the base's plus what the adapters add."""
    apart: float = 5.0
    """The controls are to be this many times further off than the bound that they try."""


FLOAT32 = Bounds(losses=1e-3, update=0.01, reload=1e-3, held_out=5e-3)
"""The same arithmetic in another order. Measured on a CPU: 5e-5 (the log is rounded); 7e-6; 3e-6; 1e-7 (7e-4 as the
mean over two ranks)."""
BFLOAT16 = Bounds(losses=0.02, update=0.15, reload=1e-3, held_out=0.01)
"""Products have 8 bits: 0.4 % each. Measured on a CPU, of whole weights and of adapters over NF4: 0.002; 0.02; 4e-6, as
the result is loaded in float32; 2e-4."""
BFLOAT16_WEIGHTS = Bounds(losses=0.06, update=0.35, reload=0.25, held_out=0.1, merge=1e-3)
"""Weights and logits, too, are in bfloat16 (steps of 0.03 near 8). Guesses: no GPU has measured them yet."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """An example and the tiers that it runs in."""

    profiles: tuple[str, ...]
    folder: str
    adapter: str
    config: str
    commands: tuple[str, ...]
    statement: str
    tiers: Mapping[Tier, Bounds]
    seconds: float = 600.0
    """For its commands: a hung one ends. Two minutes on an idle machine, and the suite's other probes run beside it."""
    steps: int
    moved: int
    """Trained tensors: weights, or halves of adapters."""
    adapters: bool = False
    merges: bool = True
    """Whether it merges its adapters."""
    extensions: str = ""
    """The package whose compiled extensions it takes."""
    without_nvcc: str = ""
    """Why it can't be had without those extensions and without nvcc."""
    needs: tuple[str, ...] = ()
    """Pins without which there is nothing to claim."""
    fall: float = 1.0
    """Of the loss from 6, in 20 steps. Measured: 5.0 of whole weights, 2.6 of adapters; without an optimiser 0.1."""
    more: BehaviourExpect = field(default_factory=lambda: cast("BehaviourExpect", {}))
    """What else is expected: `equal`, `at_most` and `at_least`, added to what is expected of all."""
