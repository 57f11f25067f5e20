"""G1: float32 kernels, and that the cuDNN that runs is compatible with the one torch was compiled for."""

from __future__ import annotations

from collections.abc import Mapping

from validate.claims import Claim
from validate.contracts.cpu import NothingExpected
from validate.contracts.gpu import CudnnEvidence
from validate.judging import Finding, failed, passed, typed
from validate.judging.gpu import kernel
from validate.judging.text import cause

_RULE = "the same major version and no earlier minor is compatible"
"""cuDNN's own rule: patch releases either way, minor releases backward, no other major version.
docs.nvidia.com/deeplearning/cudnn/v9.5.1/developer/forward-compatibility.html. torch 2.8's wheels are compiled for
9.8.0 and pin 9.10.2 (pytorch#165801 for 2.9)."""


def judge(claim: Claim, evidence: Mapping[str, object]) -> Finding:
    return (_cudnn if claim.subject == "cudnn" else kernel.judge)(claim, evidence)


@typed
def _cudnn(_subject: str, _expect: NothingExpected, evidence: CudnnEvidence) -> Finding:
    if "error" in evidence:
        return failed(cause(evidence["error"]))
    compiled, running = evidence["compiled"], evidence["running"]
    asked, runs = ".".join(map(str, compiled)), ".".join(map(str, running))
    if compiled[:1] != running[:1] or running[:2] < compiled[:2]:
        return failed(f"torch was compiled for cuDNN {asked}, cuDNN {runs} runs: {_RULE}")
    if compiled != running:
        return passed(f"cuDNN {runs} runs, torch was compiled for {asked}: {_RULE}")
    return passed(f"cuDNN {runs} runs, as torch was compiled for")
