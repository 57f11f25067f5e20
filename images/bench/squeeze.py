"""Weighs the layers of images as a registry would hold them. Streams: no layer is ever whole in memory."""

from __future__ import annotations

import hashlib
import importlib
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from images.bench.accounting import Layer
from images.engine import Engine
from images.errors import Problem, UserError

_CHUNK = 1 << 20
_EMPTY = bytes(tarfile.BLOCKSIZE * 2)
"""A layer of a step that wrote nothing."""
_GZIP = 16 + zlib.MAX_WBITS
"""zlib's way to be asked for gzip's header and trailer."""


class Scale:
    """Remembers what it has weighed: a layer that images share is compressed once."""

    def __init__(self, known: Iterable[Layer] = (), tell: Callable[[str], object] = str) -> None:
        self._by_digest = {layer.digest: layer for layer in known}
        self._names: set[str] = set()
        self._tell = tell

    def layers(self, engine: Engine, reference: str) -> list[Layer]:
        """The layers of an image, bottom first. An engine exports all of them or none. Raises NoSuchImage."""
        wanted = engine.inspect(reference).layers
        if any(digest not in self._by_digest for digest in wanted):
            with ThreadPoolExecutor(max_workers=3) as pool:
                for member, data in engine.exported(reference):
                    if member.name not in self._names and (layer := _weighed(data, pool)):
                        # The name is made of the layer and those below it: it stands for nothing else.
                        self._names.add(member.name)
                        self._by_digest[layer.digest] = layer
                        self._tell(f"{layer.digest[:19]}: {layer.tar / 1e6:.0f} MB, {layer.gzip / 1e6:.0f} with gzip")
        return [self._by_digest[digest] for digest in wanted]


class _Counter:
    """Bytes that a compressor made of what it was given."""

    def __init__(self, compressor: Any) -> None:
        self._compressor = compressor
        self._bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._bytes += len(self._compressor.compress(chunk))

    def end(self) -> int:
        return self._bytes + len(self._compressor.flush())


def _weighed(data: IO[bytes], pool: ThreadPoolExecutor) -> Layer | None:
    """None for what is no layer. The three ways to look at a chunk run side by side."""
    head = data.read(_CHUNK)
    if head[257:262] != b"ustar" and head != _EMPTY:
        return None
    digest, tar = hashlib.sha256(), 0
    gzip, zstd = _Counter(zlib.compressobj(6, zlib.DEFLATED, _GZIP)), _Counter(_zstd())
    for chunk in _chunks(head, data):
        tar += len(chunk)
        for done in [pool.submit(feed, chunk) for feed in (digest.update, gzip.feed, zstd.feed)]:
            done.result()
    return Layer(digest=f"sha256:{digest.hexdigest()}", tar=tar, gzip=gzip.end(), zstd=zstd.end())


def _chunks(head: bytes, rest: IO[bytes]) -> Iterator[bytes]:
    yield head
    while chunk := rest.read(_CHUNK):
        yield chunk


def _zstd() -> Any:
    try:
        library: Any = importlib.import_module("zstandard")
    except ImportError:
        then = "`nox -s bench` installs it; or `pip install zstandard`"
        raise UserError(Problem(where="zstandard", cause="is not installed here", then=then), code=1) from None
    return library.ZstdCompressor(level=3).compressobj()
