"""M7: /dev/shm, through which data loader workers hand over batches, and NCCL where GPUs can't reach each other."""

from __future__ import annotations

import errno
import importlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from validate.claims import Claim
from validate.harness.forked import attempt

FOLDER = Path("/dev/shm")
_BATCHES, _WORKERS = 4, 2
_MOVED = 96 << 20
"""Bytes of one batch: more than the 64 MiB that Docker gives by default."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, dict[str, Any]]]:
    for claim in claims:
        yield claim.subject, attempt(_measure)


def _measure() -> dict[str, Any]:
    """Its size, whether it refuses more than that (the control), and batches handed over by two workers."""
    room = os.statvfs(FOLDER)
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    found = {"size": size, "free": free, "refuses_more": _refuses(free + (64 << 20)), "batch": _MOVED}
    if free < _MOVED * _WORKERS * 2:  # a worker would die of SIGBUS, and say no more than that
        return {**found, "handed_over": 0, "right": False}
    return {**found, **_handed_over()}


def _refuses(size: int) -> bool:
    with tempfile.TemporaryFile(dir=FOLDER) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            return error.errno == errno.ENOSPC
    return False


class _Batches:
    """A data set of whole numbers, each batch its own."""

    def __len__(self) -> int:
        return _BATCHES

    def __getitem__(self, index: int) -> Any:
        torch = importlib.import_module("torch")
        return torch.arange(_MOVED // 8, dtype=torch.int64) + index


def _handed_over() -> dict[str, Any]:
    torch, data = importlib.import_module("torch"), importlib.import_module("torch.utils.data")
    loader = data.DataLoader(_Batches(), batch_size=None, num_workers=_WORKERS, prefetch_factor=1)
    wanted = torch.arange(_MOVED // 8, dtype=torch.int64)
    right = [bool((batch == wanted + index).all()) and batch.is_shared() for index, batch in enumerate(loader)]
    return {"handed_over": len(right), "right": all(right)}
