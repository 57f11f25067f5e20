"""C6: torch beside numpy and torchvision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validate.claims import Claim
from validate.judging import Finding, failed, listed, passed
from validate.judging.text import root_cause

Evidence = Mapping[str, Any]


_NUMPY_SUM = 15.0


def judge(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C6: numpy shares memory with torch both ways; torchvision's nms keeps the boxes that it must."""
    if "error" in evidence:
        return failed(f"{claim.subject}: {root_cause(evidence['error'])}")
    return {"numpy": _numpy_bridge, "torchvision": _nms}[claim.subject](evidence)


def _numpy_bridge(evidence: Mapping[str, Any]) -> Finding:
    broken = [name for name, shared in evidence["shared"].items() if shared is not True]
    if broken or not evidence["shared"]:
        return failed(f"torch and numpy do not share memory for {listed(broken) or 'any type'}")
    if evidence["copied_sum"] != _NUMPY_SUM:
        return failed(f"a copied array sums up to {evidence['copied_sum']}, not {_NUMPY_SUM}")
    return passed(f"numpy {evidence['numpy']} and torch share memory for {len(evidence['shared'])} types")


def _nms(evidence: Mapping[str, Any]) -> Finding:
    if evidence["kept"] != [1, 2]:
        return failed(f"nms keeps {evidence['kept']} of three boxes, [1, 2] is right")
    if evidence["control"] != [1, 0, 2]:
        return failed(f"control: nms that must drop no box keeps {evidence['control']}")
    return passed(f"torchvision {evidence['torchvision']}: nms keeps the right boxes")
