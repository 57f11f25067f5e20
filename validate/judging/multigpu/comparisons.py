"""M2 to M5 and M8: what ranks computed together, beside one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from validate.contracts.multigpu import ComparisonsExpect, ComparisonsRank, RankComparison, RanksEvidence
from validate.judging import Finding, listed, typed
from validate.judging.multigpu._ranks import of_ranks
from validate.judging.numbers import is_between, is_beyond, scientific
from validate.judging.tolerance import BACKWARD_FACTOR, BACKWARD_FLOOR, RULE_T


@typed
def judge(_subject: str, expect: ComparisonsExpect, evidence: RanksEvidence) -> Finding:
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
