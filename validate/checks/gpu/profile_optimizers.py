"""P2 of compiled optimisers: ColossalAI's HybridAdam (on a GPU its FusedAdam) and DeepSpeed's FusedAdam."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence

from validate.checks._behaviour import BehaviourEvidence, judge
from validate.claims import Claim
from validate.harness import adam
from validate.harness.forked import asked


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield the evidence of the subjects asked for: colossalai fused-adam, deepspeed fused-adam."""
    yield from asked(claims, {"colossalai fused-adam": _colossalai, "deepspeed fused-adam": _deepspeed})


def _colossalai() -> BehaviourEvidence:
    found = adam.compare(importlib.import_module("colossalai.nn.optimizer").HybridAdam, "cuda")
    return {**found, "compiled_ahead": "colossalai._C.fused_optim_cuda" in sys.modules}


def _deepspeed() -> BehaviourEvidence:
    found = adam.compare(importlib.import_module("deepspeed.ops.adam").FusedAdam, "cuda")
    return {**found, "compiled_ahead": "deepspeed.ops.adam.fused_adam_op" in sys.modules}


CLAIMS = {"P2": judge}
