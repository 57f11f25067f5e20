"""How layers are compressed for registries: the same tar gives the same bytes, on any machine, on all of its cores.

gzip, as every engine takes it, by zlib-ng at level 6: a member (RFC 1952 section 2.2) for each 4 MiB. It gave the same
bytes for 1 to 4 threads on every kind of CPU that was tried, from SSE2 on; ISA-L did not, and what libdeflate writes
takes half as long again to unpack. docs/publishing.md has the tool for other compressions.
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
"""Of a layer (OCI image specification)."""
RECIPE = f"gzip-{_LEVEL}-{BLOCK}-{zlib_ng.ZLIBNG_RUNTIME_VERSION}"
"""What the bytes depend on, beside the tar."""
_FORMAT = 16 + zlib_ng.MAX_WBITS
"""zlib's number for a gzip header around a window of 32 KiB. No time and no name go into that header."""
_OS, _UNKNOWN = 9, 255
"""The byte of that header for the operating system (RFC 1952 section 2.3.1): other machines give the same layer."""
_MOST_THREADS = 16


class SpooledBlob:
    """A compressed layer in a file without a name: whatever ends this process takes it along."""

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, content: bytes) -> None:
        """Raises OSError, for a full disk say."""
        self._hash.update(content)
        self.size += len(content)
        view = memoryview(content)
        while view:
            view = view[self._file.write(view) :]

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def read(self, offset: int, size: int) -> bytes:
        """From any thread."""
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
    """Compress a tar into a file without a name below `folder`.

    Returns what the digest of the tar (the diff ID) came to, and the file, for the caller to close. Memory is bounded
    by the threads, not by the layer. `on_read` gets how many bytes were read. Raises what `tar` raises, and OSError for
    a full disk.
    """
    threads = threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    members: deque[Future[bytes]] = deque()  # in their order
    blob, digest = SpooledBlob(folder), hashlib.sha256()
    try:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            for block in blocks(tar):
                members.append(pool.submit(_gzip, block))
                if len(members) > threads:
                    blob.write(members.popleft().result())
                digest.update(block)
                on_read(len(block))
            while members:
                blob.write(members.popleft().result())
    except BaseException:
        blob.close()
        raise
    return f"sha256:{digest.hexdigest()}", blob


def _gzip(block: bytes) -> bytes:
    member = bytearray(zlib_ng.compress(block, _LEVEL, wbits=_FORMAT))
    member[_OS] = _UNKNOWN
    return bytes(member)


def blocks(chunks: Iterable[bytes], size: int = BLOCK) -> Iterator[bytes]:
    """The same bytes in blocks of one size, the last one shorter: what is compressed must not depend on the reader."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)
