"""What verbs that are no plain functions yet share: an image's claims, and options of validation runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from images.commands.engines import open_engine as open_engine
from images.commands.engines import open_runtime as open_runtime
from images.commands.options import Gpus, Tiers
from images.engine import gpus as gpu_access
from validate.claims import Tier


@dataclass(frozen=True, kw_only=True)
class TrialArguments:
    """What a validation run measures, and on which GPUs."""

    tier: Tiers = None
    gpus: Gpus = gpu_access.AUTO

    @property
    def tiers(self) -> Sequence[Tier]:
        """Empty: all that this machine can."""
        return self.tier or ()
