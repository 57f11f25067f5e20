"""P1 and P2: what a framework did, against what the claim expects of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validate.claims import Claim
from validate.judging import Finding, failed, listed, passed

Evidence = Mapping[str, Any]


def judge(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """P1, P2. expect: any of `equal` (key -> value), `holds` (key -> items that must be among what was found),
    `at_most` and `at_least` (key -> number); a control is an `at_least` on what a broken image would make small."""
    if not evidence:
        return failed("nothing was measured")
    if "error" in evidence:
        return failed(f"{evidence['error']['kind']}: {evidence['error']['message'][:300]}")
    if problems := list(_problems(claim.expect, evidence)):
        return failed(listed(problems))
    return passed(listed([f"{key} {_short(evidence[key])}" for key in _asked(claim.expect)], limit=6))


def _problems(expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Iterator[str]:
    for key, wanted in expect.get("equal", {}).items():
        if evidence[key] != wanted:
            yield f"{key} is {_short(evidence[key])}, not {_short(wanted)}"
    for key, wanted in expect.get("holds", {}).items():
        if lacking := [item for item in wanted if item not in evidence[key]]:
            yield f"{key} lacks {listed(lacking)}"
    for key, bound in expect.get("at_most", {}).items():
        if not evidence[key] <= bound:
            yield f"{key} is {evidence[key]:.3g}, more than {bound:g}"
    for key, bound in expect.get("at_least", {}).items():
        if not evidence[key] >= bound:
            yield f"{key} is {evidence[key]:.3g}, less than {bound:g}"


def _asked(expect: Mapping[str, Any]) -> Iterator[str]:
    return (key for kind in ("equal", "holds", "at_most", "at_least") for key in expect.get(kind, {}))


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return listed([str(item) for item in value], limit=8) or "nothing"
    return str(value)[:80]
