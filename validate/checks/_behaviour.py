"""Judge figures that must have a certain value, or be at most or at least another.

The limits of a framework's behaviour stand in its check's own file. Those of an example, and of the
settings in an image's environment, come with the claim.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from validate.judging import Finding, failed, listed, passed

BehaviourEvidence = Mapping[str, Any]
"""Figures by name. A control is a figure that must be large: a wrong result must be recognised."""


class Limits(TypedDict, total=False):
    """The name of each figure, and the value, the most or the least that it may be."""

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
    """What is expected of an example: how it is run, and the limits of its figures."""

    example: ExampleRun


def judge_limits(_subject: str, expect: Limits, evidence: BehaviourEvidence) -> Finding:
    """Judge figures by the limits of the claim. A claim without limits fails."""
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
    """Judge figures by these limits: name of the figure -> the value, the most or the least.

    FAIL: a figure is beyond its limit, or nothing was measured at all. Raises KeyError if one of
    the figures was not measured, which makes the claim FAIL, too.
    """
    if not evidence:
        return failed("nothing was measured")

    equal, at_most, at_least = equal or {}, at_most or {}, at_least or {}
    problems = [
        *_find_unequal(evidence, equal),
        *_find_too_large(evidence, at_most),
        *_find_too_small(evidence, at_least),
    ]
    if problems:
        return failed(listed(problems))

    figures = []
    for name in (*equal, *at_most, *at_least):
        figures.append(f"{name} {_shorten(evidence[name])}")
    return passed(listed(figures, limit=6))


def _find_unequal(evidence: BehaviourEvidence, equal: Mapping[str, object]) -> Iterator[str]:
    """Yield a problem for each figure that has another value than it must have."""
    for key, value in equal.items():
        if evidence[key] != value:
            yield f"{key} is {_shorten(evidence[key])}, not {_shorten(value)}"


def _find_too_large(evidence: BehaviourEvidence, at_most: Mapping[str, float]) -> Iterator[str]:
    """Yield a problem for each figure that is larger than its bound, or NaN."""
    for key, bound in at_most.items():
        figure = evidence[key]
        if not figure <= bound:
            yield f"{key} is {figure:.3g}, more than {bound:g}"


def _find_too_small(evidence: BehaviourEvidence, at_least: Mapping[str, float]) -> Iterator[str]:
    """Yield a problem for each figure that is smaller than its bound, or NaN."""
    for key, bound in at_least.items():
        figure = evidence[key]
        if not figure >= bound:
            yield f"{key} is {figure:.3g}, less than {bound:g}"


def _shorten(value: object) -> str:
    """Return a figure as short text: three digits of a float, the first eight items of a list."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return listed([str(item) for item in value], limit=8) or "nothing"
    return str(value)[:80]
