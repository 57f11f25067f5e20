"""M6: how fast ranks talk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from validate.claims import Claim
from validate.judging import Finding, not_applicable, passed, unproven
from validate.judging.multigpu._ranks import of_ranks
from validate.judging.numbers import is_between

Evidence = Mapping[str, Any]


def judge(claim: Claim, evidence: Evidence) -> Finding:
    """M6: never red. expect: {device, ranks?, minimum: bytes a second, link}."""
    finding = of_ranks(claim, evidence, lambda _expect, _rank: iter(()), lambda _expect, _ranks: "")
    if finding.reason:
        return finding if finding.status is not_applicable("").status else unproven(f"warning: {finding.reason}")
    slowest = {way: min(_number(one[way]) for one in evidence["ranks"]) for way in ("all_reduce", "send")}
    said = f"all-reduce {_speed(slowest['all_reduce'])}, to the next rank {_speed(slowest['send'])}"
    minimum = claim.expect["minimum"]
    if not is_between(min(slowest.values()), minimum, math.inf):
        return unproven(
            f"warning: {said}; {claim.expect['link'] or 'this link'} should give {_speed(minimum)} at least"
        )
    return passed(f"{said} ({claim.expect['link'] or 'link unknown'})")


def _number(value: Any) -> float:
    """Not-a-number arrives as text, and is no speed."""
    return float(value) if isinstance(value, int | float) else 0.0


def _speed(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s"
