"""What checks of several GPUs share: what a rank yields, and that each rank must have done well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, cast

from validate.evidence import Exempt, Measured
from validate.judging import (
    BACKWARD_FACTOR,
    BACKWARD_FLOOR,
    RULE_T,
    Finding,
    cause,
    failed,
    is_between,
    is_beyond,
    joined,
    listed,
    not_applicable,
    passed,
    scientific,
)


class RanksExpect(Exempt):
    device: str
    """`cuda`, or `cpu` in a rehearsal."""
    ranks: int | None
    """None: the claims know no host."""


class _DeviceDetails(TypedDict, total=False):
    name: str
    capability: list[int]
    uuid: str


class RankDevice(_DeviceDetails):
    type: str
    backend: str
    torch: str


class Rank(Measured):
    device: RankDevice


class RanksEvidence(Measured):
    ranks: list[Rank]
    """Each of the kind that its claim asks for."""


class ComparisonsRow(TypedDict, total=False):
    tolerance: dict[str, float | str]
    facts: dict[str, object]
    figures: dict[str, list[float]]
    stage: int


class ComparisonsExpect(RanksExpect, ComparisonsRow):
    pass


class RankComparison(TypedDict, total=False):
    """Some recorded evidence has controls alone."""

    error: float
    plain_error: float
    controls: dict[str, float]


class ComparisonsResult(TypedDict, total=False):
    comparisons: dict[str, RankComparison]
    facts: dict[str, object]
    figures: dict[str, float]
    deepspeed: str
    """Its version."""
    accelerator: str
    """The one that DeepSpeed was told to take."""


class ComparisonsRank(Rank, ComparisonsResult):
    pass


class ComparisonsEvidence(Measured):
    ranks: list[ComparisonsRank]


X = TypeVar("X", bound=RanksExpect)
R = TypeVar("R", bound=Rank)


def of_ranks(
    expect: X,
    evidence: Mapping[str, Any],
    problems_of: Callable[[X, R], Iterator[str]],
    summary: Callable[[X, Sequence[R]], str],
) -> Finding:
    """Every rank in its place, and without a problem of its own."""
    if reason := cast(Exempt, expect).get("not_applicable"):
        return not_applicable(reason)
    if "error" in evidence:
        return failed(cause(evidence["error"]))
    ranks = cast("Sequence[R]", evidence["ranks"])
    problems = list(_place_problems(expect, ranks))
    for number, rank in enumerate(ranks):
        if "error" in rank:
            problems.append(f"rank {number}: {cause(rank['error'])}")
        elif not problems:
            problems += [f"rank {number}: {problem}" for problem in problems_of(expect, rank)]
    return failed(joined(problems)) if problems else passed(summary(expect, ranks))


def _place_problems(expect: RanksExpect, ranks: Sequence[Rank]) -> Iterator[str]:
    """Each rank on a device of its own, of the kind that was asked for, through that kind's backend."""
    wanted = expect["ranks"]
    if len(ranks) < 2 or (wanted and len(ranks) != wanted):
        yield f"{len(ranks)} ranks measured, {wanted or 'at least 2'} were asked for"
    devices = [rank["device"] for rank in ranks if "error" not in rank]
    for device in devices:
        backend = {"cuda": "nccl", "cpu": "gloo"}[expect["device"]]
        if device["type"] != expect["device"] or backend not in device["backend"]:
            yield f"ran on {device['type']} through {device['backend']}, not on {expect['device']} through {backend}"
    if expect["device"] == "cuda" and len({device["uuid"] for device in devices}) != len(devices):
        yield "two ranks ran on one GPU"


def judge(_subject: str, expect: ComparisonsExpect, evidence: ComparisonsEvidence) -> Finding:
    """M2 to M5, M8: what ranks computed together, beside one process.

    expect: {device, ranks?, tolerance: {comparison: number or "T"}, facts: {name: value},
    figures: {name: [least, most]}}. Each comparison needs controls, and each control must be beyond the tolerance.
    """
    return of_ranks(expect, evidence, _comparison_problems, _summary)


def _comparison_problems(expect: ComparisonsExpect, rank: ComparisonsRank) -> Iterator[str]:
    found = rank.get("comparisons", {})
    for name, rule in expect.get("tolerance", {}).items():
        if name not in found:
            yield f"{name} were not compared"
            continue
        yield from _one_comparison(name, _tolerance(rule, found[name]), found[name])
    for name, value in expect.get("facts", {}).items():
        if (seen := rank.get("facts", {}).get(name)) != value:
            yield f"{name}: {seen!r}, not {value!r}"
    for name, (least, most) in expect.get("figures", {}).items():
        if not is_between(figure := rank.get("figures", {}).get(name), least, most):
            yield f"{name} is {scientific(figure)}, not between {scientific(least)} and {scientific(most)}"


def _one_comparison(name: str, tolerance: float, found: RankComparison) -> Iterator[str]:
    if not is_between(found["error"], 0, tolerance):
        yield f"{name} are off by {scientific(found['error'])}, at most {scientific(tolerance)} is allowed"
    if not found["controls"]:
        yield f"{name} have no control"
    for control, value in found["controls"].items():
        if not is_beyond(value, tolerance):
            yield f"control: {name} {control} are off by {scientific(value)}, which the tolerance lets pass"


def _tolerance(rule: str | float, found: RankComparison) -> float:
    return BACKWARD_FACTOR * found["plain_error"] + BACKWARD_FLOOR if rule == RULE_T else float(rule)


def _summary(expect: ComparisonsExpect, ranks: Sequence[ComparisonsRank]) -> str:
    said = [
        f"{name} within {max(rank['comparisons'][name]['error'] for rank in ranks):.1e}"
        for name in expect.get("tolerance", {})
    ]
    said += [f"{name} {scientific(ranks[0]['figures'][name])}" for name in expect.get("figures", {})]
    said += [_fact(name, value) for name, value in expect.get("facts", {}).items()]
    return f"{len(ranks)} ranks: {listed(said, limit=6)}"


def _fact(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} {listed([str(item) for item in value]) if isinstance(value, list) else value}"
