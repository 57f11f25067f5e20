"""framework to `framework`, `resume` and `allocator`: what a framework did, by figures that have an exact value, a
most or a least.

The limits of a behaviour stand in its check's own file. Those of an example, and of what an image's environment sets,
come with the claim.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from validate.judging import Finding, failed, listed, passed

BehaviourEvidence = Mapping[str, Any]
"""Facts by name. A control is a figure that a broken image would make small."""


class Limits(TypedDict, total=False):
    """Figure -> the value that it must have, the most, the least."""

    equal: Mapping[str, object]
    at_most: Mapping[str, float]
    at_least: Mapping[str, float]


class ExampleRun(TypedDict):
    """How an example is run (validate/examples/run.py)."""

    folder: str
    commands: Sequence[str]
    config: str
    adapter: str
    seconds: float


class ExampleExpect(Limits):
    """What is expected of an example."""

    example: ExampleRun


def judge_limits(_subject: str, expect: Limits, evidence: BehaviourEvidence) -> Finding:
    """Judge figures by the limits of the claim."""
    if not any(expect.get(rule) for rule in ("equal", "at_most", "at_least")):
        return failed("the claim has no limits")
    return judge_figures(
        evidence,
        equal=expect.get("equal", {}),
        at_most=expect.get("at_most", {}),
        at_least=expect.get("at_least", {}),
    )


def judge_figures(
    evidence: BehaviourEvidence,
    *,
    equal: Mapping[str, object] | None = None,
    at_most: Mapping[str, float] | None = None,
    at_least: Mapping[str, float] | None = None,
) -> Finding:
    """Judge figures by these limits. A figure that was not measured raises KeyError, which the claim fails by."""
    if not evidence:
        return failed("nothing was measured")

    equal, at_most, at_least = equal or {}, at_most or {}, at_least or {}
    problems = [
        *_unequal(evidence, equal),
        *_too_large(evidence, at_most),
        *_too_small(evidence, at_least),
    ]
    if problems:
        return failed(listed(problems))
    return passed(
        listed([f"{key} {_short(evidence[key])}" for key in (*equal, *at_most, *at_least)], limit=6)
    )


def _unequal(evidence: BehaviourEvidence, equal: Mapping[str, object]) -> Iterator[str]:
    """Yield figures that have another value."""
    for key, value in equal.items():
        if evidence[key] != value:
            yield f"{key} is {_short(evidence[key])}, not {_short(value)}"


def _too_large(evidence: BehaviourEvidence, at_most: Mapping[str, float]) -> Iterator[str]:
    """Yield figures that are larger than their bound, or no numbers."""
    for key, bound in at_most.items():
        figure = evidence[key]
        if not figure <= bound:
            yield f"{key} is {figure:.3g}, more than {bound:g}"


def _too_small(evidence: BehaviourEvidence, at_least: Mapping[str, float]) -> Iterator[str]:
    """Yield figures that are smaller than their bound, or no numbers."""
    for key, bound in at_least.items():
        figure = evidence[key]
        if not figure >= bound:
            yield f"{key} is {figure:.3g}, less than {bound:g}"


def _short(value: object) -> str:
    """Write a figure in a few characters."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return listed([str(item) for item in value], limit=8) or "nothing"
    return str(value)[:80]
