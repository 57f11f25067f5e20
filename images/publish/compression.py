"""How layers are compressed for registries: the same tar gives the same bytes, on any machine, on all of its cores.

| | library | settings |
|---|---|---|
| zstd | zstandard (libzstd) | level 9 with its own window, 4 MB: larger ones save 1 % and cost who pulls more time |
| gzip | zlib-ng | level 6, a member (RFC 1952 section 2.2) for each 4 MiB |

Both gave the same bytes for 1 to 4 threads on every kind of CPU that was tried, from SSE2 on; ISA-L did not, and what
libdeflate writes takes half as long again to unpack.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

import zstandard
from zlib_ng import zlib_ng

from images.registry.distribution import Manifest

BLOCK = 4 << 20
"""Bytes of a tar that are compressed at a time."""
_ZSTD_LEVEL, _GZIP_LEVEL = 9, 6
_SLICE = 1 << 12
"""Bytes that are taken at a time of what others compressed: 4 KiB of zstd can be 128 MiB."""
_GZIP_FORMAT = 16 + zlib_ng.MAX_WBITS
"""zlib's number for a gzip header around a window of 32 KiB. No time and no name go into that header."""
_OS, _UNKNOWN = 9, 255
"""The byte of that header for the operating system (RFC 1952 section 2.3.1): other machines give the same layer."""
_MOST_THREADS = 16
"""libzstd holds about 40 MB for each."""


class Compression(StrEnum):
    """How the layers of a variant are compressed."""

    GZIP = "gzip"
    ZSTD = "zstd"

    @property
    def media_type(self) -> str:
        """Of a layer (OCI image specification)."""
        return f"application/vnd.oci.image.layer.v1.tar+{self.value}"

    @property
    def recipe(self) -> str:
        """What the bytes depend on, beside the tar."""
        if self is Compression.ZSTD:
            return f"zstd-{_ZSTD_LEVEL}-{'.'.join(map(str, zstandard.ZSTD_VERSION))}"
        return f"gzip-{_GZIP_LEVEL}-{BLOCK}-{zlib_ng.ZLIBNG_RUNTIME_VERSION}"


def compression_of(manifest: Manifest) -> Compression:
    """What a reader must take for the image: a compression counts where a layer has it."""
    zstd = any(layer.media_type.endswith("zstd") for layer in manifest.layers)
    return Compression.ZSTD if zstd else Compression.GZIP


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
    wanted: Sequence[Compression],
    folder: Path,
    *,
    threads: int = 0,
    on_read: Callable[[int], object] = lambda _bytes: None,
) -> tuple[str, dict[Compression, SpooledBlob]]:
    """Compress a tar in each way that is wanted, in one pass, into files without names below `folder`.

    Returns what the digest of the tar (the diff ID) came to, and a file for each way, for the caller to close. Memory
    is bounded by the threads, not by the layer. `on_read` gets how many bytes were read. Raises what `tar` raises, and
    OSError for a full disk.
    """
    threads = threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    zstd_settings = zstandard.ZstdCompressionParameters.from_level(_ZSTD_LEVEL, threads=threads, write_checksum=True)
    zstd = zstandard.ZstdCompressor(compression_params=zstd_settings).compressobj()
    members: deque[Future[bytes]] = deque()  # of gzip, in their order
    blobs = {one: SpooledBlob(folder) for one in wanted}
    digest = hashlib.sha256()
    try:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            for block in blocks(tar):
                if Compression.ZSTD in blobs:
                    blobs[Compression.ZSTD].write(zstd.compress(block))
                if Compression.GZIP in blobs:
                    members.append(pool.submit(_gzip, block))
                    if len(members) > threads:
                        blobs[Compression.GZIP].write(members.popleft().result())
                digest.update(block)
                on_read(len(block))
            if Compression.ZSTD in blobs:
                blobs[Compression.ZSTD].write(zstd.flush())
            while members:
                blobs[Compression.GZIP].write(members.popleft().result())
    except BaseException:
        for blob in blobs.values():
            blob.close()
        raise
    return f"sha256:{digest.hexdigest()}", blobs


def uncompressed(chunks: Iterable[bytes], compression: Compression) -> Iterator[bytes]:
    """The tar of a compressed layer, all members or frames of it. Raises ValueError for what is not compressed so."""

    def fresh() -> Any:
        zstd = compression is Compression.ZSTD
        return zstandard.ZstdDecompressor().decompressobj() if zstd else zlib_ng.decompressobj(wbits=_GZIP_FORMAT)

    reading = fresh()
    try:
        for rest in (chunk[at : at + _SLICE] for chunk in chunks for at in range(0, len(chunk), _SLICE)):
            while rest:
                yield reading.decompress(rest)
                rest = reading.unused_data if reading.eof else b""
                reading = fresh() if reading.eof else reading
    except (zlib_ng.error, zstandard.ZstdError) as error:  # type: ignore[misc]  # the stub's `error` is a value
        raise ValueError(f"it is no {compression}: {error}") from None


def _gzip(block: bytes) -> bytes:
    member = bytearray(zlib_ng.compress(block, _GZIP_LEVEL, wbits=_GZIP_FORMAT))
    member[_OS] = _UNKNOWN
    return bytes(member)


def blocks(chunks: Iterable[bytes], size: int = BLOCK) -> Iterator[bytes]:
    """The same bytes in blocks of one size, the last one shorter: what is compressed must not depend on the reader."""
    parts: list[bytes] = []
    held = 0
    for chunk in chunks:
        view = memoryview(chunk)
        while held + len(view) >= size:
            taken = size - held
            yield b"".join((*parts, view[:taken]))
            parts, held, view = [], 0, view[taken:]
        if view:
            parts.append(bytes(view))
            held += len(view)
    if parts:
        yield b"".join(parts)
