"""What judges of the gpu tier share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from validate.judging import listed

Evidence = Mapping[str, Any]


def suspects(evidence: Evidence) -> str:
    """Variables that send computations another way, where something is wrong."""
    variables = [f"{name}={value}" for name, value in evidence.get("environment", {}).items()]
    return f" ({listed(variables)} is set)" if variables else ""


def dotted(capability: Sequence[int]) -> str:
    return ".".join(map(str, capability))
