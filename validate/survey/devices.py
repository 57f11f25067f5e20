"""Device code of every library of an image: bytes by GPU architecture."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from validate.binaries import elf, fatbin, kernel_states
from validate.binaries.elf import ElfError
from validate.binaries.fatbin import FatbinError

_LEAST = 4096


def read(paths: Sequence[str]) -> list[dict[str, Any]]:
    """One row a library with device code, as many processes as cores; files that can't be read say why."""
    weighed = sorted(paths, key=_size, reverse=True)
    if not weighed:
        return []
    with multiprocessing.get_context("fork").Pool(min(len(os.sched_getaffinity(0)), len(weighed))) as pool:
        return sorted((row for row in pool.imap_unordered(_row, weighed) if row), key=lambda row: str(row["path"]))


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _row(path: str) -> dict[str, Any] | None:
    """`archs`: `sm_90` (machine code) or `compute_90` (PTX) -> bytes in the file."""
    if _size(path) < _LEAST:
        return None
    try:
        with Path(path).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != elf.MAGIC:
                return None
            entries = [
                entry for region in fatbin.regions(data, fatbin.ALL) for entry in kernel_states.left(data, region)
            ]
    except (FatbinError, ElfError, OSError, ValueError) as error:
        return {"path": path, "error": str(error)}
    sizes: Counter[str] = Counter()
    for entry in entries:
        sizes[f"{'compute' if entry.ptx else 'sm'}_{entry.arch}{entry.variant}"] += entry.room
    return {"path": path, "archs": dict(sorted(sizes.items()))} if entries else None
