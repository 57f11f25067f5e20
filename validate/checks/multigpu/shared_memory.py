"""shared-memory: data loader workers die of a small /dev/shm, and NCCL needs it where GPUs can't reach each other."""

import errno
import importlib
import math
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from validate.harness.forked import measure_claimed_subjects
from validate.judging import Finding, failed, is_between, passed

FOLDER = Path("/dev/shm")
_BATCHES, _WORKERS = 4, 2
_MOVED = 96 << 20
"""Bytes of one batch: more than the 64 MiB that Docker gives by default."""
LEAST_BYTES = 1 << 30
"""Docker's 64 MiB do not hold one prefetched batch a worker."""


class SharedMemoryEvidence(TypedDict):
    """Bytes of /dev/shm, whether it refuses more than it has (the control), and batches that workers handed over."""

    size: int
    free: int
    refuses_more: bool
    batch: int
    handed_over: int
    right: bool


def _measure() -> SharedMemoryEvidence:
    """Measure its size, whether it refuses more than that (the control), and hand over batches by two workers."""
    room = os.statvfs(FOLDER)
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    refuses_more = _refuses(free + (64 << 20))
    # With too little room a worker would die of SIGBUS, and say no more than that.
    has_room = free >= _MOVED * _WORKERS * 2
    handed_over, right = _handed_over() if has_room else (0, False)
    return {
        "size": size,
        "free": free,
        "refuses_more": refuses_more,
        "batch": _MOVED,
        "handed_over": handed_over,
        "right": right,
    }


def _refuses(size: int) -> bool:
    with tempfile.TemporaryFile(dir=FOLDER) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            return error.errno == errno.ENOSPC
    return False


def _batch(number: int) -> Any:
    """Whole numbers, each batch its own."""
    return importlib.import_module("torch").arange(_MOVED // 8) + number


def _handed_over() -> tuple[int, bool]:
    """How many batches arrived, and whether all of them are right and lie in shared memory."""
    data = importlib.import_module("torch.utils.data")
    options = {
        "batch_size": None,
        "collate_fn": _batch,
        "num_workers": _WORKERS,
        "prefetch_factor": 1,
    }
    arrived = enumerate(data.DataLoader(range(_BATCHES), **options))
    right = [
        bool((batch == _batch(number)).all()) and batch.is_shared() for number, batch in arrived
    ]
    return len(right), all(right)


def judge(_subject: str, _expect: object, evidence: SharedMemoryEvidence) -> Finding:
    """Judge the size, and that batches arrive."""
    size = evidence["size"]
    if not is_between(size, LEAST_BYTES, math.inf):
        return failed(f"/dev/shm is too small: {_bytes(size)}, {_bytes(LEAST_BYTES)} are needed")
    if evidence["refuses_more"] is not True:
        return failed("control: a file larger than /dev/shm was not refused")
    if evidence["right"] is not True or not evidence["handed_over"]:
        return failed("batches that workers hand over do not arrive as they were made")
    return passed(
        f"{_bytes(size)}; workers handed over {evidence['handed_over']} batches of {_bytes(evidence['batch'])}"
    )


def _bytes(value: float) -> str:
    return f"{value / 2**20:.0f} MiB"


measure = partial(measure_claimed_subjects, measures={"dev-shm": _measure})
CLAIMS = {"shared-memory": judge}
