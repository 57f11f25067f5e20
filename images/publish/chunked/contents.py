"""What zstd:chunked adds to a layer: a table of contents, the tar's headers, and where both stand.

The format is that of github.com/containers/storage, docs/containers-storage-zstd-chunked.md and
pkg/chunked/internal/minimal/compression.go; the tar's headers are tar-split's (github.com/vbatts/tar-split,
tar/storage/entry.go). Both lie in skippable frames (RFC 8878, section 3.1.2): who reads zstd reads the tar alone.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import zstandard

from images.host.hashing import oci_digest
from images.publish.chunked.chunks import LEVEL, compressed
from images.publish.chunked.tar_entries import TarEntry

_ANNOTATION = "io.github.containers.zstd-chunked."
TOC_DIGEST, TOC_POSITION, TAR_SPLIT_POSITION = (
    f"{_ANNOTATION}manifest-checksum",
    f"{_ANNOTATION}manifest-position",
    f"{_ANNOTATION}tarsplit-position",
)
"""Annotations of a layer. Podman pulls parts of a layer that has them."""
_SKIPPABLE, _FOOTER_MAGIC = 0x184D2A50, b"GNUlInUx"
_SKIPPABLE_HEADER = 8
_CRFS = 1
"""The one type of table that there is."""
_FILE, _SEGMENT = 1, 2


@dataclass(frozen=True, kw_only=True)
class StoredChunk:
    """A chunk of a file, and where its frame begins in the blob."""

    offset: int
    size: int
    digest: str
    is_zeros: bool


@dataclass(kw_only=True)
class StoredFile:
    """An entry of the layer, and its chunks as they are written. `digest` is the whole file's."""

    entry: TarEntry
    digest: str = ""
    end: int = 0
    chunks: list[StoredChunk] = field(default_factory=list)


class TarSplit:
    """The tar without its payloads, as JSON lines in one zstd frame: from it and the files podman makes the tar again.

    A segment stands before every file, and each holds one header (tar/asm/iterate.go).
    """

    def __init__(self) -> None:
        self._stream = zstandard.ZstdCompressor(level=LEVEL).compressobj()
        self._content = bytearray()
        self._raw = bytearray()
        self._lines = 0
        self.uncompressed = 0

    def raw(self, content: bytes) -> None:
        self._raw += content

    def file(self, entry: TarEntry, checksum: bytes) -> None:
        """An entry, with the CRC-64 of its payload: 8 bytes, none for an empty one."""
        self._segment()
        size = {"size": entry.size} if entry.size else {}
        self._line({"type": _FILE, "name": entry.name, **size, "payload": _base64(checksum) if checksum else None})

    def finish(self) -> bytes:
        """The frame."""
        self._segment()
        self._content += self._stream.flush()
        return bytes(self._content)

    def _segment(self) -> None:
        if self._raw:
            self._line({"type": _SEGMENT, "payload": _base64(bytes(self._raw))})
            self._raw.clear()

    def _line(self, data: Mapping[str, object]) -> None:
        line = json.dumps({**data, "position": self._lines}, separators=(",", ":")).encode() + b"\n"
        self._lines += 1
        self.uncompressed += len(line)
        self._content += self._stream.compress(line)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What follows a layer's last frame, and the annotations that say where it stands."""

    content: bytes
    annotations: Mapping[str, str]


def ending(offset: int, files: Iterable[StoredFile], tar_split: TarSplit) -> Ending:
    """The skippable frames of a layer whose frames end at `offset`. Pure, but that it ends `tar_split`."""
    split = tar_split.finish()
    toc = json.dumps(
        {
            "version": 1,
            "entries": [one for file in files for one in _toc_entries(file)],
            "tarSplitDigest": oci_digest(split),
        },
        separators=(",", ":"),
    ).encode()
    table = compressed(toc)
    at_toc = offset + _SKIPPABLE_HEADER
    at_split = at_toc + len(table) + _SKIPPABLE_HEADER
    of_toc, of_split = (at_toc, len(table), len(toc), _CRFS), (at_split, len(split), tar_split.uncompressed)
    footer = struct.pack("<7Q", *of_toc, *of_split) + _FOOTER_MAGIC
    return Ending(
        content=b"".join(_skippable(one) for one in (table, split, footer)),
        annotations={
            TOC_DIGEST: oci_digest(table),
            TOC_POSITION: _position(of_toc),
            TAR_SPLIT_POSITION: _position(of_split),
        },
    )


def _toc_entries(file: StoredFile) -> Iterator[dict[str, object]]:
    """The entry of a file, and one for each chunk but the first, which the file's own entry has."""
    first = file.chunks[0] if file.chunks else None
    of_first = _toc_chunk(first) if first and len(file.chunks) > 1 else {}
    place = {"digest": file.digest, "offset": first.offset, "endOffset": file.end} if first else {}
    yield {**_toc_header(file.entry), **place, **of_first}
    done = first.size if first else 0
    for chunk in file.chunks[1:]:
        yield {"type": "chunk", "name": file.entry.name, "chunkOffset": done, **_toc_chunk(chunk)}
        done += chunk.size


def _toc_chunk(chunk: StoredChunk) -> dict[str, object]:
    found: dict[str, object] = {"offset": chunk.offset, "chunkSize": chunk.size, "chunkDigest": chunk.digest}
    return {**found, "chunkType": "zeros"} if chunk.is_zeros else found


def _toc_header(entry: TarEntry) -> dict[str, object]:
    major, minor = entry.device
    found: dict[str, object] = {
        "linkName": entry.linkname,
        "mode": entry.mode,
        "size": entry.size,
        "uid": entry.uid,
        "gid": entry.gid,
        "modtime": entry.modified,
        "accesstime": entry.accessed,
        "changetime": entry.changed,
        "devMajor": major,
        "devMinor": minor,
        "xattrs": dict(entry.xattrs),
    }
    return {"type": entry.kind, "name": entry.name, **{key: value for key, value in found.items() if value}}


def _skippable(content: bytes) -> bytes:
    return struct.pack("<II", _SKIPPABLE, len(content)) + content


def _position(numbers: Sequence[int]) -> str:
    return ":".join(map(str, numbers))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
