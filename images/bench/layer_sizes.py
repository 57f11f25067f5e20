"""Measures the layers of images as a registry would hold them. Streams: no layer is ever whole in memory."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from images.bench.accounting import Layer
from images.engine import Engine
from images.engine import layers as stored_layers

_CHUNK = 1 << 20
_EMPTY = bytes(tarfile.BLOCKSIZE * 2)
"""A layer of a step that wrote nothing."""
_GZIP = 16 + zlib.MAX_WBITS
"""zlib's way to be asked for gzip's header and trailer."""


class LayerSizes:
    """Remembers what it has measured: a layer that images share is compressed once."""

    def __init__(self, known: Iterable[Layer] = (), tell: Callable[[Layer], object] = lambda _layer: None) -> None:
        """`tell` gets each layer when it has been measured."""
        self._known = {layer.digest: layer for layer in known}
        self._tell = tell

    def of(self, engine: Engine, reference: str, *, but: str = "") -> list[Layer]:
        """The layers of an image, bottom first, `but` one. Raises NoSuchImage.

        Read where the engine keeps them if that is here: an export needs as much room as the image, and has all layers.
        """
        wanted = engine.inspect(reference).layers
        folders = stored_layers.folders(engine, reference)
        with ThreadPoolExecutor(max_workers=3) as pool:
            if folders:
                for digest, folder in zip(wanted, folders, strict=True):
                    if digest not in {*self._known, but}:
                        self._note(_read(folder, digest, pool))
            elif any(digest not in {*self._known, but} for digest in wanted):
                for layer in _exported(engine, reference, pool):
                    if layer.digest != but:
                        self._note(layer)
        return [self._known[digest] for digest in wanted if digest != but]

    def _note(self, layer: Layer) -> None:
        self._known[layer.digest] = layer
        self._tell(layer)


class _Counter:
    """Bytes that a compressor made of what it was given."""

    def __init__(self, compressor: Any) -> None:
        self._compressor = compressor
        self._bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._bytes += len(self._compressor.compress(chunk))

    def end(self) -> int:
        return self._bytes + len(self._compressor.flush())


class _Measured:
    """Takes a tar in chunks. The ways to look at a chunk run side by side."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._digest = hashlib.sha256()
        self._gzip = _Counter(zlib.compressobj(6, zlib.DEFLATED, _GZIP))
        self._zstd = _Counter(zstandard.ZstdCompressor(level=3).compressobj())
        self._tar = 0

    def write(self, chunk: bytes) -> int:
        self._tar += len(chunk)
        for done in [
            self._pool.submit(feed, chunk) for feed in (self._digest.update, self._gzip.feed, self._zstd.feed)
        ]:
            done.result()
        return len(chunk)

    def layer(self, digest: str = "") -> Layer:
        """`digest`: what the engine calls it, where it is not the tar itself that was read."""
        own = digest or f"sha256:{self._digest.hexdigest()}"
        return Layer(digest=own, tar=self._tar, gzip=self._gzip.end(), zstd=self._zstd.end())


def _exported(engine: Engine, reference: str, pool: ThreadPoolExecutor) -> Iterator[Layer]:
    for _, data in engine.exported(reference):
        head = data.read(_CHUNK)
        if head[257:262] == b"ustar" or head == _EMPTY:
            measured = _Measured(pool)
            for chunk in _chunks(head, data):
                measured.write(chunk)
            yield measured.layer()


def _chunks(head: bytes, rest: IO[bytes]) -> Iterator[bytes]:
    yield head
    while chunk := rest.read(_CHUNK):
        yield chunk


def _read(folder: Path, digest: str, pool: ThreadPoolExecutor) -> Layer:
    """A layer's folder as the tar that the engine would make of it, but for details of its headers."""
    measured = _Measured(pool)
    with tarfile.open(fileobj=cast("IO[bytes]", measured), mode="w|", bufsize=_CHUNK, format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, arcname=str(path.relative_to(folder)), recursive=False, filter=_whole_seconds)
    return measured.layer(digest)


def _whole_seconds(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """As engines write them: fractions would take a block of their own for each file."""
    entry.mtime = int(entry.mtime)
    return entry
