"""C6: torch beside numpy and torchvision."""

from __future__ import annotations

from validate.contracts.cpu import NothingExpected, NumpyEvidence, TorchvisionEvidence
from validate.judging import Finding, by_subject, failed, listed, passed, typed
from validate.judging.text import root_cause

_NUMPY_SUM = 15.0


@typed
def _numpy_bridge(subject: str, _expect: NothingExpected, evidence: NumpyEvidence) -> Finding:
    if "error" in evidence:
        return failed(f"{subject}: {root_cause(evidence['error'])}")
    broken = [name for name, shared in evidence["shared"].items() if shared is not True]
    if broken or not evidence["shared"]:
        return failed(f"torch and numpy do not share memory for {listed(broken) or 'any type'}")
    if evidence["copied_sum"] != _NUMPY_SUM:
        return failed(f"a copied array sums up to {evidence['copied_sum']}, not {_NUMPY_SUM}")
    return passed(f"numpy {evidence['numpy']} and torch share memory for {len(evidence['shared'])} types")


@typed
def _nms(subject: str, _expect: NothingExpected, evidence: TorchvisionEvidence) -> Finding:
    if "error" in evidence:
        return failed(f"{subject}: {root_cause(evidence['error'])}")
    if evidence["kept"] != [1, 2]:
        return failed(f"nms keeps {evidence['kept']} of three boxes, [1, 2] is right")
    if evidence["control"] != [1, 0, 2]:
        return failed(f"control: nms that must drop no box keeps {evidence['control']}")
    return passed(f"torchvision {evidence['torchvision']}: nms keeps the right boxes")


judge = by_subject({"numpy": _numpy_bridge, "torchvision": _nms})
"""C6: numpy shares memory with torch both ways; torchvision's nms keeps the boxes that it must."""
