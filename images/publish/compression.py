"""Compress layers of images with gzip: the same tar gives the same bytes on any machine.

The tar is cut into blocks of 4 MiB, and each becomes a gzip member of its own (RFC 1952 section
2.2), so all cores can work on it. zlib-ng at level 6 gave the same bytes for 1 to 4 threads on
every kind of CPU that was tried, from SSE2 on. ISA-L did not, and what libdeflate writes takes half
as long again to unpack. docs/publishing.md names the tool for other compressions.
"""

import hashlib
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from zlib_ng import zlib_ng

BLOCK = 4 << 20
"""Bytes of a tar that are compressed at a time."""
_LEVEL = 6
MEDIA_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
"""The media type of such a layer (OCI image specification)."""
RECIPE = f"gzip-{_LEVEL}-{BLOCK}-{zlib_ng.ZLIBNG_RUNTIME_VERSION}"
"""Everything but the tar that decides the compressed bytes."""
_FORMAT = 16 + zlib_ng.MAX_WBITS
"""zlib's number for a gzip header and a window of 32 KiB. The header has no time and no name."""
_OS, _UNKNOWN = 9, 255
"""The byte of the header for the operating system, and its value for `unknown` (RFC 1952 section
2.3.1): so other machines give the same layer."""
_MOST_THREADS = 16


class SpooledBlob:
    """A compressed layer in a temporary file without a name, which vanishes with this process."""

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, content: bytes) -> None:
        """Append bytes. Raises OSError, as for a full disk."""
        self._hash.update(content)
        self.size += len(content)
        # An unbuffered file may write less than it is given.
        remaining = memoryview(content)
        while remaining:
            written = self._file.write(remaining)
            remaining = remaining[written:]

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes. Several threads may read at the same time."""
        return os.pread(self._file.fileno(), size, offset)

    def close(self) -> None:
        self._file.close()


def compress(
    tar: Iterable[bytes],
    folder: Path,
    *,
    threads: int = 0,
    on_read: Callable[[int], object] = lambda _bytes: None,
) -> tuple[str, SpooledBlob]:
    """Compress a tar into a temporary file in a folder. Return the tar's digest and the file.

    `tar` yields the bytes of an uncompressed layer, in chunks of any size; their digest is the
    layer's diff ID. Blocks of 4 MiB are compressed by several threads, and written in their order.
    The caller must close the file.

    `threads`: 0 stands for the number of CPUs, at most 16; memory grows with it and not with the
    tar. `on_read` is called with the number of bytes of each block that was read. Raises OSError
    for a full disk, and whatever reading the tar raises.
    """
    threads = threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    blob = SpooledBlob(folder)
    digest = hashlib.sha256()
    # The gzip members (compressed blocks) that are not yet written, in their order.
    members: deque[Future[bytes]] = deque()
    try:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            for block in split_blocks(tar):
                members.append(pool.submit(_gzip, block))
                # Wait for the oldest member before more blocks than threads are in memory.
                if len(members) > threads:
                    blob.write(members.popleft().result())
                digest.update(block)
                on_read(len(block))
            while members:
                blob.write(members.popleft().result())
    except BaseException:
        # Also after Ctrl-C: nobody else knows the file.
        blob.close()
        raise
    return f"sha256:{digest.hexdigest()}", blob


def _gzip(block: bytes) -> bytes:
    """Compress a block into a gzip member whose header does not name this operating system."""
    member = bytearray(zlib_ng.compress(block, _LEVEL, wbits=_FORMAT))
    member[_OS] = _UNKNOWN
    return bytes(member)


def split_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of chunks in blocks of exactly BLOCK bytes; the last block may be shorter.

    So the compressed bytes do not depend on the sizes in which a tar is read. Without any bytes,
    there is no block.
    """
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= BLOCK:
            yield bytes(buffer[:BLOCK])
            del buffer[:BLOCK]
    if buffer:
        yield bytes(buffer)
