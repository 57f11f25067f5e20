"""What judges of the multigpu tier share: each rank must have done well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

from validate.contracts import Exempt
from validate.contracts.multigpu import Rank, RanksEvidence, RanksExpect
from validate.judging import Finding, failed, not_applicable, passed
from validate.judging.text import cause, joined

X = TypeVar("X", bound=RanksExpect)
R = TypeVar("R", bound=Rank)


def of_ranks(
    expect: X,
    evidence: RanksEvidence,
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
