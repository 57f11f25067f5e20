"""G1: float32 is float32, and the cuDNN that runs is compatible with the one torch was compiled for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

from validate.claims import Claim
from validate.contracts import NoEvidence
from validate.contracts.gpu import CudnnEvidence, KernelEvidence
from validate.harness.forked import attempt
from validate.kernels import runner

CUDNN = "cudnn"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, KernelEvidence | CudnnEvidence | NoEvidence]]:
    yield from runner.measure([claim for claim in claims if claim.subject != CUDNN])
    if any(claim.subject == CUDNN for claim in claims):
        yield CUDNN, attempt(_cudnn)


def _cudnn() -> CudnnEvidence:
    """Versions as cuDNN counts them: 91900 is 9.19.0."""
    torch = importlib.import_module("torch")
    bindings = torch._C._cudnn
    return {
        "compiled": list(bindings.getCompileVersion()),
        "running": list(bindings.getRuntimeVersion()),
        "torch says": torch.backends.cudnn.version(),
    }
