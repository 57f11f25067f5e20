"""numerics: float32 that is silently TF32 loses ten bits, and a cuDNN older than torch's fails at the first
convolution."""

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

from validate.claims import Claim
from validate.harness.forked import attempt
from validate.judging import Finding, failed, passed
from validate.kernels import runner
from validate.kernels.judge import judge

CUDNN = "cudnn"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Any]]:
    yield from runner.measure([claim for claim in claims if claim.subject != CUDNN])
    if any(claim.subject == CUDNN for claim in claims):
        yield CUDNN, attempt(_cudnn)


CudnnEvidence = TypedDict("CudnnEvidence", {"compiled": list[int], "running": list[int], "torch says": int})


def _cudnn() -> CudnnEvidence:
    """Return versions as cuDNN counts them: 91900 is 9.19.0."""
    torch = importlib.import_module("torch")
    bindings = torch._C._cudnn
    return {
        "compiled": list(bindings.getCompileVersion()),
        "running": list(bindings.getRuntimeVersion()),
        "torch says": torch.backends.cudnn.version(),
    }


_RULE = "the same major version and no earlier minor is compatible"
"""cuDNN's own rule: patch releases either way, minor releases backward, no other major version.
docs.nvidia.com/deeplearning/cudnn/v9.5.1/developer/forward-compatibility.html. torch 2.8's wheels are compiled for
9.8.0 and pin 9.10.2 (pytorch#165801 for 2.9)."""


def judge_cudnn(_subject: str, _expect: object, evidence: CudnnEvidence) -> Finding:
    """Judge by cuDNN's own rule of compatibility."""
    compiled, running = evidence["compiled"], evidence["running"]
    asked, runs = ".".join(map(str, compiled)), ".".join(map(str, running))
    if compiled[:1] != running[:1] or running[:2] < compiled[:2]:
        return failed(f"torch was compiled for cuDNN {asked}, cuDNN {runs} runs: {_RULE}")
    if compiled != running:
        return passed(f"cuDNN {runs} runs, torch was compiled for {asked}: {_RULE}")
    return passed(f"cuDNN {runs} runs, as torch was compiled for")


CLAIMS = {"numerics/cudnn": judge_cudnn, "numerics": judge}
