"""Judges of the multigpu tier: M1 to M8. Evidence is `{"ranks": [rank 0's, rank 1's, ...]}`: each must do well."""

from __future__ import annotations

from collections.abc import Mapping

from validate.judging import Judging
from validate.judging.multigpu import bandwidth, collectives, comparisons, shared_memory

JUDGES: Mapping[str, Judging] = {
    "M1": collectives.judge,
    **dict.fromkeys(("M2", "M3", "M4", "M5", "M8"), comparisons.judge),
    "M6": bandwidth.judge,
    "M7": shared_memory.judge,
}
