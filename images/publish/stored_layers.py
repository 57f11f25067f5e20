"""A compressed layer that is read once: what its bytes are, and what they unpack to."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, cast

import zstandard

from images.publish.compression import Compression

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LayerDigests:
    """Digests of one layer. `diff_id` is empty where the bytes can't be unpacked."""

    blob: str
    diff_id: str


def digests(chunks: Iterable[bytes], compression: Compression) -> LayerDigests:
    """Hash a layer as it is stored, and its tar. Memory is bounded. Raises what `chunks` raises."""
    stored = _HashedStream(chunks)
    buffered = cast("IO[bytes]", io.BufferedReader(stored, _CHUNK))
    try:
        diff_id = _digest(_unpacked(buffered, compression))
    except (gzip.BadGzipFile, EOFError, zlib.error, zstandard.ZstdError):
        diff_id = ""
    while buffered.read(_CHUNK):
        """The blob's digest is of all its bytes, whatever an unpacker makes of the last ones."""
    return LayerDigests(blob=stored.digest, diff_id=diff_id)


def _unpacked(stream: IO[bytes], compression: Compression) -> IO[bytes]:
    if compression is not Compression.GZIP:
        reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True, closefd=False)
        return cast("IO[bytes]", reader)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))


def _digest(stream: IO[bytes]) -> str:
    found = hashlib.sha256()
    while chunk := stream.read(_CHUNK):
        found.update(chunk)
    return f"sha256:{found.hexdigest()}"


class _HashedStream(io.RawIOBase):
    """Chunks as a stream, hashed as they are read."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = memoryview(b"")
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._hash.update(chunk)
            self._left = memoryview(chunk)
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"
