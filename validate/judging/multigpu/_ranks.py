"""What judges of the multigpu tier share: each rank must have done well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from validate.claims import Claim
from validate.judging import Finding, failed, not_applicable, passed
from validate.judging.text import cause

Evidence = Mapping[str, Any]


EXPLAINED = 3


def of_ranks(
    claim: Claim,
    evidence: Evidence,
    problems_of: Callable[[Evidence, Evidence], Iterator[str]],
    praise: Callable[[Evidence, Sequence[Evidence]], str],
) -> Finding:
    if reason := claim.expect.get("not_applicable"):
        return not_applicable(reason)
    if "error" in evidence:
        return failed(cause(evidence["error"]))
    ranks = evidence["ranks"]
    problems = list(_place_problems(claim.expect, ranks))
    for number, rank in enumerate(ranks):
        if "error" in rank:
            problems.append(f"rank {number}: {cause(rank['error'])}")
        elif not problems:
            problems += [f"rank {number}: {problem}" for problem in problems_of(claim.expect, rank)]
    if problems:
        shown = "; ".join(problems[:EXPLAINED])
        return failed(shown + (f"; and {len(problems) - EXPLAINED} more" if len(problems) > EXPLAINED else ""))
    return passed(praise(claim.expect, ranks))


def _place_problems(expect: Evidence, ranks: Sequence[Evidence]) -> Iterator[str]:
    """Each rank on a device of its own, of the kind that was asked for, through that kind's backend."""
    wanted = expect.get("ranks")
    if len(ranks) < 2 or (wanted and len(ranks) != wanted):
        yield f"{len(ranks)} ranks measured, {wanted or 'at least 2'} were asked for"
    devices = [rank["device"] for rank in ranks if "error" not in rank]
    for device in devices:
        backend = {"cuda": "nccl", "cpu": "gloo"}[expect["device"]]
        if device["type"] != expect["device"] or backend not in device["backend"]:
            yield f"ran on {device['type']} through {device['backend']}, not on {expect['device']} through {backend}"
    if expect["device"] == "cuda" and len({device["uuid"] for device in devices}) != len(devices):
        yield "two ranks ran on one GPU"
