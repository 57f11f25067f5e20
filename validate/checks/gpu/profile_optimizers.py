"""P2 of compiled optimisers: ColossalAI's HybridAdam (on a GPU its FusedAdam) and DeepSpeed's FusedAdam."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from validate.checks._behaviour import BehaviourEvidence, judge
from validate.claims import Claim
from validate.harness import adam
from validate.harness.forked import attempt


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield the evidence of the subjects asked for: colossalai fused-adam, deepspeed fused-adam."""
    asked = {claim.subject for claim in claims}
    measures: Mapping[str, Callable[[], BehaviourEvidence]] = {
        "colossalai fused-adam": _colossalai,
        "deepspeed fused-adam": _deepspeed,
    }
    for subject, evidence in measures.items():
        if subject in asked:
            yield subject, attempt(evidence)


def _colossalai() -> BehaviourEvidence:
    found = adam.compare(importlib.import_module("colossalai.nn.optimizer").HybridAdam, "cuda")
    return {**found, "compiled_ahead": "colossalai._C.fused_optim_cuda" in sys.modules}


def _deepspeed() -> BehaviourEvidence:
    found = adam.compare(importlib.import_module("deepspeed.ops.adam").FusedAdam, "cuda")
    return {**found, "compiled_ahead": "deepspeed.ops.adam.fused_adam_op" in sys.modules}


CLAIMS = {"P2": judge}
