"""G1: float32 is float32, and the cuDNN that runs is the one torch was compiled for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from validate.claims import Claim
from validate.harness.forked import attempt
from validate.kernels import runner

CUDNN = "cudnn"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from runner.measure([claim for claim in claims if claim.subject != CUDNN])
    if any(claim.subject == CUDNN for claim in claims):
        yield CUDNN, attempt(_cudnn)


def _cudnn() -> dict[str, Any]:
    """Versions as cuDNN counts them: 91900 is 9.19.0."""
    torch = importlib.import_module("torch")
    bindings = torch._C._cudnn
    return {
        "compiled": list(bindings.getCompileVersion()),
        "running": list(bindings.getRuntimeVersion()),
        "torch says": torch.backends.cudnn.version(),
    }
