"""C1: packages import in either order, and nothing complains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from validate.claims import Claim
from validate.judging import Finding, failed, listed, passed
from validate.judging.text import joined, root_cause

Evidence = Mapping[str, Any]


def judge(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C1. expect: {modules, first, complaints: [patterns], harmless: {pattern: why it may be said}}."""
    if not evidence["orders"]:
        return failed("nothing was imported")
    problems = []
    for order, found in evidence["orders"].items():
        if "error" in found:
            problems.append(f"imported {order}: {root_cause({**found['error'], 'log': ''})}")
            continue
        problems += [f"imported {order} it says: {line}" for line in found["said"] if _is_complaint(claim, line)]
    if problems:
        return failed(joined(list(dict.fromkeys(problems))))
    return passed(f"{listed(list(claim.expect['modules']))} imported {' and '.join(evidence['orders'])}, no complaint")


def _is_complaint(claim: Claim, line: str) -> bool:
    if any(re.search(pattern, line, re.IGNORECASE) for pattern in claim.expect["harmless"]):
        return False
    return any(re.search(pattern, line, re.IGNORECASE) for pattern in claim.expect["complaints"])
