"""Files cut into chunks where their content says so, so that a changed file shares chunks with its older version.

The cuts are a writer's own choice (github.com/containers/storage, pkg/chunked: FileMetadata); what counts is that
every layer is cut alike. A cut is where the upper bits of a gear hash of the last 32 bytes are zero (Xia et al.,
FastCDC, USENIX ATC 2016, section 3.2).
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import zstandard
from numpy.typing import NDArray

AVERAGE = 1 << 20
"""Bytes of a chunk, about. docs/benchmarks.md has what other sizes cost and save."""
_LEAST, _MOST = AVERAGE >> 2, AVERAGE << 2
_CUT = np.uint32((AVERAGE - 1) << (32 - AVERAGE.bit_length() + 1))
_GEAR = np.frombuffer(b"".join(hashlib.sha256(bytes([one])).digest()[:4] for one in range(256)), "<u4").astype("u4")
"""A random number for each byte."""
_WINDOW = 32
"""Bytes that a hash is of: each further one would be moved out of its 32 bits."""
_STRIDE = 1 << 18
"""Bytes that are hashed at a time: their hashes stay in a processor's cache."""
LEVEL = 9
_local = threading.local()


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A part of a file in a frame of its own. `size` in bytes of the file."""

    size: int
    digest: str
    is_zeros: bool
    frame: bytes


def chunks(content: bytes) -> Iterator[Chunk]:
    """A file, or a long piece of one, in chunks."""
    start = 0
    for end in cuts(content):
        part = content[start:end]
        yield Chunk(
            size=len(part),
            digest=f"sha256:{hashlib.sha256(part).hexdigest()}",
            is_zeros=not part.strip(b"\0"),
            frame=compressed(part),
        )
        start = end


def cuts(content: bytes) -> Iterator[int]:
    """Where each chunk ends. Pure."""
    last = 0
    for place in itertools.chain(_places(content), [len(content)]):
        while place - last > _MOST:
            last += _MOST
            yield last
        if place - last >= _LEAST or last < place == len(content):
            last = place
            yield last


def compressed(content: bytes) -> bytes:
    """A zstd frame, from any thread."""
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=LEVEL)
    return cast("bytes", _local.compressor.compress(content))


def _places(content: bytes) -> Iterator[int]:
    """Where content may be cut: after each byte whose hash has zeros where the mask has ones."""
    if len(content) <= _LEAST:
        return
    numbers = np.frombuffer(content, np.uint8)
    for start in range(0, len(content), _STRIDE):
        before = min(start, _WINDOW - 1)
        hashes = _hashes(numbers[start - before : start + _STRIDE])[before:]
        yield from (np.flatnonzero((hashes & _CUT) == 0) + start + 1).tolist()


def _hashes(numbers: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The gear hash that ends at each byte: of n bytes, sum of GEAR[byte] << age, where the last one's age is 0."""
    hashes = _GEAR[numbers]
    length = 1
    while length < _WINDOW:  # that of 2n bytes is that of the later n and, moved, that of the n before
        longer = hashes.copy()
        longer[length:] += hashes[:-length] << np.uint32(length)
        hashes, length = longer, 2 * length
    return hashes
