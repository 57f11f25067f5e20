"""P1 to P3: what a framework did, against what the claim expects of it."""

from collections.abc import Iterator, Mapping
from typing import Any

from validate.judging import Finding, failed, listed, passed

BehaviourEvidence = Mapping[str, Any]
"""Facts by name, each of which what is expected may name."""


def judge(_subject: str, expect: Mapping[str, Any], evidence: BehaviourEvidence) -> Finding:
    """P1 to P3. expect: any of `equal` (key -> value), `holds` (key -> items that must be among what was found),
    `at_most` and `at_least` (key -> number); a control is an `at_least` on what a broken image would make small."""
    if not evidence:
        return failed("nothing was measured")
    if problems := list(_problems(expect, evidence)):
        return failed(listed(problems))
    asked = [key for rule in ("equal", "holds", "at_most", "at_least") for key in expect.get(rule, {})]
    return passed(listed([f"{key} {_short(evidence[key])}" for key in asked], limit=6))


def _problems(expect: Mapping[str, Any], evidence: BehaviourEvidence) -> Iterator[str]:
    for key, wanted in expect.get("equal", {}).items():
        if evidence[key] != wanted:
            yield f"{key} is {_short(evidence[key])}, not {_short(wanted)}"
    for key, items in expect.get("holds", {}).items():
        if lacking := [item for item in items if item not in evidence[key]]:
            yield f"{key} lacks {listed(lacking)}"
    for key, bound in expect.get("at_most", {}).items():
        if not (number := evidence[key]) <= bound:
            yield f"{key} is {number:.3g}, more than {bound:g}"
    for key, bound in expect.get("at_least", {}).items():
        if not (number := evidence[key]) >= bound:
            yield f"{key} is {number:.3g}, less than {bound:g}"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return listed([str(item) for item in value], limit=8) or "nothing"
    return str(value)[:80]
