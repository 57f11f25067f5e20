"""M6: how fast ranks talk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

from validate.contracts.multigpu import BandwidthExpect, BandwidthRank, RanksEvidence
from validate.judging import Finding, Status, passed, typed, unproven
from validate.judging.multigpu._ranks import of_ranks
from validate.judging.numbers import is_between


@typed
def judge(_subject: str, expect: BandwidthExpect, evidence: RanksEvidence) -> Finding:
    """M6: never red. expect: {device, ranks?, minimum: bytes a second, link}."""
    finding = of_ranks(expect, evidence, _no_problem, lambda _expect, _ranks: "")
    if finding.reason:
        return finding if finding.status is Status.NOT_APPLICABLE else unproven(f"warning: {finding.reason}")
    ranks = cast("Sequence[BandwidthRank]", evidence["ranks"])
    all_reduce = min(_number(rank["all_reduce"]) for rank in ranks)
    send = min(_number(rank["send"]) for rank in ranks)
    said = f"all-reduce {_speed(all_reduce)}, to the next rank {_speed(send)}"
    minimum = expect["minimum"]
    if not is_between(min(all_reduce, send), minimum, math.inf):
        return unproven(f"warning: {said}; {expect['link'] or 'this link'} should give {_speed(minimum)} at least")
    return passed(f"{said} ({expect['link'] or 'link unknown'})")


def _no_problem(_expect: BandwidthExpect, _rank: BandwidthRank) -> Iterator[str]:
    return iter(())


def _number(value: object) -> float:
    """Not-a-number arrives as text, and is no speed."""
    return float(value) if isinstance(value, int | float) else 0.0


def _speed(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s"
