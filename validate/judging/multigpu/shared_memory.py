"""M7: /dev/shm."""

from __future__ import annotations

import math

from validate.contracts.multigpu import SharedMemoryEvidence, SharedMemoryExpect
from validate.judging import Finding, failed, passed, typed
from validate.judging.numbers import is_between
from validate.judging.text import cause


@typed
def judge(_subject: str, expect: SharedMemoryExpect, evidence: SharedMemoryEvidence) -> Finding:
    """M7. expect: {least: bytes}."""
    if "error" in evidence:
        return failed(cause(evidence["error"]))
    size = evidence["size"]
    if not is_between(size, expect["least"], math.inf):
        return failed(f"/dev/shm is too small: {_bytes(size)}, {_bytes(expect['least'])} are needed")
    if evidence["refuses_more"] is not True:
        return failed("control: a file larger than /dev/shm was not refused")
    if evidence["right"] is not True or not evidence["handed_over"]:
        return failed("batches that workers hand over do not arrive as they were made")
    return passed(
        f"{_bytes(size)}; workers handed over {evidence['handed_over']} batches of {_bytes(evidence['batch'])}"
    )


def _bytes(value: float) -> str:
    return f"{value / 2**20:.0f} MiB"
