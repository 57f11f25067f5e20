"""G1: the cuDNN that runs, and float32 kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validate.claims import Claim
from validate.judging import Finding, failed, passed
from validate.judging.gpu import kernel
from validate.judging.text import cause

Evidence = Mapping[str, Any]


def judge(claim: Claim, evidence: Evidence) -> Finding:
    """G1: a kernel, or (`cudnn`) the cuDNN that runs against the one torch was compiled for."""
    if claim.subject != "cudnn":
        return kernel.judge(claim, evidence)
    if "error" in evidence:
        return failed(cause(evidence["error"]))
    compiled, running = (".".join(map(str, evidence[which])) for which in ("compiled", "running"))
    if compiled != running:
        return failed(f"torch was compiled for cuDNN {compiled}, cuDNN {running} runs")
    return passed(f"cuDNN {running} runs, as torch was compiled for")
