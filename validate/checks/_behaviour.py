"""P1 to P3: what a framework did, against what the claim expects of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from validate.evidence import Error, Exempt
from validate.examples.run import ExampleExpect
from validate.judging import Finding, failed, listed, not_applicable, passed


class BehaviourExpect(Exempt, total=False):
    """What must hold of the evidence, by its key."""

    program: str
    """What the probe runs."""
    example: ExampleExpect
    equal: Mapping[str, object]
    holds: Mapping[str, Sequence[str]]
    """Items that must be among what was found."""
    at_most: Mapping[str, float]
    at_least: Mapping[str, float]
    """Of controls, too: what a broken image would make small."""


BehaviourEvidence = Mapping[str, object]
"""Facts by name, each of which a row of BehaviourExpect may name; or `error`."""


def judge(_subject: str, expect: BehaviourExpect, evidence: BehaviourEvidence) -> Finding:
    """P1 to P3. expect: any of `equal` (key -> value), `holds` (key -> items that must be among what was found),
    `at_most` and `at_least` (key -> number); a control is an `at_least` on what a broken image would make small."""
    if reason := expect.get("not_applicable"):
        return not_applicable(reason)
    if not evidence:
        return failed("nothing was measured")
    if "error" in evidence:
        error = cast("Error", evidence["error"])
        return failed(f"{error['kind']}: {error['message'][:300]}")
    if problems := list(_problems(expect, evidence)):
        return failed(listed(problems))
    return passed(listed([f"{key} {_short(evidence[key])}" for key in _asked(expect)], limit=6))


def _problems(expect: BehaviourExpect, evidence: BehaviourEvidence) -> Iterator[str]:
    for key, wanted in expect.get("equal", {}).items():
        if evidence[key] != wanted:
            yield f"{key} is {_short(evidence[key])}, not {_short(wanted)}"
    for key, items in expect.get("holds", {}).items():
        if lacking := [item for item in items if item not in cast("Sequence[str]", evidence[key])]:
            yield f"{key} lacks {listed(lacking)}"
    for key, bound in expect.get("at_most", {}).items():
        number = cast("float", evidence[key])
        if not number <= bound:
            yield f"{key} is {number:.3g}, more than {bound:g}"
    for key, bound in expect.get("at_least", {}).items():
        number = cast("float", evidence[key])
        if not number >= bound:
            yield f"{key} is {number:.3g}, less than {bound:g}"


def _asked(expect: BehaviourExpect) -> Iterator[str]:
    for keys in (expect.get("equal"), expect.get("holds"), expect.get("at_most"), expect.get("at_least")):
        yield from keys or ()


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return listed([str(item) for item in value], limit=8) or "nothing"
    return str(value)[:80]
