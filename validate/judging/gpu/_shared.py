"""What judges of the gpu tier share."""

from __future__ import annotations

from collections.abc import Sequence

from validate.contracts.gpu import DeviceEvidence, KernelEvidence, QloraEvidence
from validate.judging import listed


def suspects(evidence: DeviceEvidence | KernelEvidence | QloraEvidence) -> str:
    """Variables that send computations another way, where something is wrong."""
    variables = [f"{name}={value}" for name, value in evidence.get("environment", {}).items()]
    return f" ({listed(variables)} is set)" if variables else ""


def dotted(capability: Sequence[int]) -> str:
    return ".".join(map(str, capability))
