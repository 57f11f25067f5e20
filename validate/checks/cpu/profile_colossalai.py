"""framework of the colossalai profile: it launches on one rank, and HybridAdam takes the steps of torch's AdamW.

The profile's example `booster` trains by the Booster, and is compared with plain torch.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from validate.checks._adam import judge_adam
from validate.checks._behaviour import judge_figures
from validate.claims import Claim
from validate.harness import adam
from validate.harness.forked import asked, free_port
from validate.judging import Finding


class LaunchEvidence(TypedDict):
    """CUDA_DEVICE_MAX_CONNECTIONS as the image has it and after the launch, and how many ranks there are."""

    connections_before: str
    connections_after: str
    world: int


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the evidence of the subjects asked for: colossalai launch and hybrid-adam."""
    measures: Mapping[str, Callable[[], Mapping[str, Any]]] = {
        "colossalai-launch": _launch,
        "colossalai-hybrid-adam": _hybrid_adam,
    }
    yield from asked(claims, measures)


def _launch() -> LaunchEvidence:
    """The variable as the image has it, and after ColossalAI has set its own."""
    before = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "unset")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    colossalai = importlib.import_module("colossalai")
    colossalai.launch(rank=0, world_size=1, host="127.0.0.1", port=free_port(), backend="gloo")
    return {
        "connections_before": before,
        "connections_after": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "unset"),
        "world": int(importlib.import_module("torch.distributed").get_world_size()),
    }


def _hybrid_adam() -> adam.CompiledDeviations:
    """HybridAdam on weights of the CPU, by the kernel that was compiled with the package."""
    found = adam.compare(importlib.import_module("colossalai.nn.optimizer").HybridAdam)
    return {**found, "compiled_ahead": "colossalai._C.cpu_adam_x86" in sys.modules}


def judge_launch(_subject: str, _expect: object, evidence: LaunchEvidence) -> Finding:
    """Judge that one rank was launched, and the variable is as the image sets it."""
    return judge_figures(
        evidence,
        equal={"connections_before": "1", "connections_after": "1", "world": 1},
    )


CLAIMS = {
    "framework/colossalai-launch": judge_launch,
    "framework/colossalai-hybrid-adam": judge_adam,
}
