"""C1: packages import in either order, and nothing complains."""

from __future__ import annotations

import re

from validate.contracts import Raised
from validate.contracts.cpu import ImportsEvidence, ImportsExpect
from validate.judging import Finding, failed, listed, passed, typed
from validate.judging.text import joined, root_cause


@typed
def judge(_subject: str, expect: ImportsExpect, evidence: ImportsEvidence) -> Finding:
    """C1. expect: {modules, first, complaints: [patterns], harmless: {pattern: why it may be said}}."""
    if not evidence["orders"]:
        return failed("nothing was imported")
    problems = []
    for order, found in evidence["orders"].items():
        if "error" in found:
            error: Raised = {"kind": found["error"]["kind"], "message": found["error"]["message"]}
            problems.append(f"imported {order}: {root_cause(error)}")
            continue
        problems += [f"imported {order} it says: {line}" for line in found["said"] if _is_complaint(expect, line)]
    if problems:
        return failed(joined(list(dict.fromkeys(problems))))
    return passed(f"{listed(list(expect['modules']))} imported {' and '.join(evidence['orders'])}, no complaint")


def _is_complaint(expect: ImportsExpect, line: str) -> bool:
    if any(re.search(pattern, line, re.IGNORECASE) for pattern in expect["harmless"]):
        return False
    return any(re.search(pattern, line, re.IGNORECASE) for pattern in expect["complaints"])
