"""G1: float32 kernels, and the cuDNN that runs against the one torch was compiled for."""

from __future__ import annotations

from collections.abc import Mapping

from validate.claims import Claim
from validate.contracts.cpu import NothingExpected
from validate.contracts.gpu import CudnnEvidence
from validate.judging import Finding, failed, passed, typed
from validate.judging.gpu import kernel
from validate.judging.text import cause


def judge(claim: Claim, evidence: Mapping[str, object]) -> Finding:
    return (_cudnn if claim.subject == "cudnn" else kernel.judge)(claim, evidence)


@typed
def _cudnn(_subject: str, _expect: NothingExpected, evidence: CudnnEvidence) -> Finding:
    if "error" in evidence:
        return failed(cause(evidence["error"]))
    compiled, running = (".".join(map(str, versions)) for versions in (evidence["compiled"], evidence["running"]))
    if compiled != running:
        return failed(f"torch was compiled for cuDNN {compiled}, cuDNN {running} runs")
    return passed(f"cuDNN {running} runs, as torch was compiled for")
