"""Device code of every library of an image: bytes by GPU architecture, and the bytes that one architecture needs."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from validate.binaries import elf, fatbin, kernel_states
from validate.binaries.elf import ElfError
from validate.binaries.fatbin import Entry, FatbinError, Region

_LEAST = 4096
_TARGETS = (50, 60, 70, 75, 80, 86, 89, 90, 100, 103, 120)
"""GPUs of servers and workstations from Maxwell to Blackwell, by compute capability."""


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
    if _size(path) < _LEAST:
        return None
    try:
        with Path(path).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != elf.MAGIC:
                return None
            found = tuple(fatbin.regions(data, fatbin.ALL))
            entries = [entry for region in found for entry in kernel_states.left(data, region)]
    except (FatbinError, ElfError, OSError, ValueError) as error:
        return {"path": path, "error": str(error)}
    return {"path": path, "archs": _by_arch(entries), "needed": _needed(found, entries)} if entries else None


def _by_arch(entries: Sequence[Entry]) -> Mapping[str, int]:
    """`sm_90` (machine code) or `compute_90` (PTX) to bytes in the file."""
    sizes: Counter[str] = Counter()
    for entry in entries:
        sizes[f"{'compute' if entry.ptx else 'sm'}_{entry.arch}{entry.variant}"] += entry.room
    return dict(sorted(sizes.items()))


def _needed(found: Sequence[Region], entries: Sequence[Entry]) -> Mapping[str, int]:
    """Each architecture to the bytes that a GPU of it has a use for, and would still have if the rest were gone."""
    targets = sorted({*_TARGETS, *(entry.arch for entry in entries if not entry.ptx)})
    return {str(target): sum(entry.room for region in found for entry in region.needed(target)) for target in targets}
