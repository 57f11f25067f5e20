"""Compress a layer as zstd:chunked: every chunk of every file is a frame that can be fetched alone."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from fastcrc import crc64

from images.publish.chunked.chunks import Chunk, chunks, compressed
from images.publish.chunked.contents import StoredChunk, StoredFile, TarSplit, ending
from images.publish.chunked.tar_entries import Payload, Raw, TarEntry, TarScanner
from images.publish.spooled_blob import SpooledBlob

FORMAT = 1
"""Raised with every change of what is written for the same tar: records of older layers count no more."""
PIECE = 32 << 20
"""Bytes of a file that are cut and compressed at a time: some 30 chunks, of which the last is shorter for it."""


@dataclass(frozen=True, kw_only=True)
class _Frames:
    """A piece of a layer, compressed: what is no file's, then chunks of a file."""

    raw: bytes
    chunks: Sequence[Chunk]


class ChunkedZstd:
    """Takes the tar in any pieces. The same tar gives the same bytes."""

    def __init__(self, target: SpooledBlob, threads: int, pool: ThreadPoolExecutor) -> None:
        self._target = target
        self._most_waiting = threads + 1
        self._pool = pool
        self._scanner = TarScanner()
        self._tar_split = TarSplit()
        self._files: list[StoredFile] = []
        self._raw = bytearray()
        self._payload = bytearray()
        self._left = 0
        """Bytes of the file that is read."""
        self._digest = hashlib.sha256()
        self._checksum = 0
        self._waiting: deque[tuple[StoredFile | None, Future[_Frames]]] = deque()

    def write(self, block: bytes) -> None:
        """Raises UnknownTarError, OSError."""
        for event in self._scanner.feed(block):
            match event:
                case Raw(content):
                    self._raw += content
                    self._tar_split.raw(content)
                case TarEntry():
                    self._begin(event)
                case Payload(content):
                    self._read(content)

    def finish(self) -> None:
        """Raises UnknownTarError, OSError."""
        self._scanner.finish()
        self._compress(None)
        self._store(0)
        end = ending(self._target.size, self._files, self._tar_split)
        self._target.write(end.content)
        self._target.annotations = end.annotations

    def _begin(self, entry: TarEntry) -> None:
        self._files.append(StoredFile(entry=entry))
        self._left = entry.size
        self._digest, self._checksum = hashlib.sha256(), 0
        if not entry.size:
            self._tar_split.file(entry, b"")

    def _read(self, content: bytes) -> None:
        self._digest.update(content)
        self._checksum = crc64.go_iso(content, self._checksum)
        self._left -= len(content)
        self._payload += content
        while len(self._payload) >= PIECE:
            self._compress(self._files[-1], PIECE)
        if self._left:
            return
        file = self._files[-1]
        file.digest = f"sha256:{self._digest.hexdigest()}"
        if self._payload:
            self._compress(file)
        self._tar_split.file(file.entry, self._checksum.to_bytes(8, "big"))

    def _compress(self, file: StoredFile | None, size: int | None = None) -> None:
        """Have a thread compress what is held, and write what is done in turn: memory is bounded."""
        raw, piece = bytes(self._raw), bytes(self._payload[:size])
        self._raw.clear()
        del self._payload[:size]
        self._waiting.append((file, self._pool.submit(_frames, raw, piece)))
        self._store(self._most_waiting)

    def _store(self, most: int) -> None:
        while len(self._waiting) > most:
            file, future = self._waiting.popleft()
            frames = future.result()
            self._target.write(frames.raw)
            if file:
                for chunk in frames.chunks:
                    self._store_chunk(file, chunk)

    def _store_chunk(self, file: StoredFile, chunk: Chunk) -> None:
        offset = self._target.size
        self._target.write(chunk.frame)
        file.end = self._target.size
        stored = StoredChunk(offset=offset, size=chunk.size, digest=chunk.digest, is_zeros=chunk.is_zeros)
        file.chunks.append(stored)


def _frames(raw: bytes, piece: bytes) -> _Frames:
    return _Frames(raw=compressed(raw) if raw else b"", chunks=tuple(chunks(piece)))
