"""A reader of zstd:chunked as podman is one: it takes frames by their places, and makes the tar again from them.

Written from the format (github.com/containers/storage, pkg/chunked), without the code that it judges.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import zstandard
from fastcrc import crc64

PREFIX = "io.github.containers.zstd-chunked."


@dataclass(frozen=True)
class ChunkedLayer:
    """A blob with the annotations that its manifest has."""

    blob: bytes
    annotations: Mapping[str, str]

    @property
    def toc(self) -> dict[str, Any]:
        offset, size, uncompressed, kind = self._position("manifest-position")
        content = self.blob[offset : offset + size]
        assert digest(content) == self.annotations[f"{PREFIX}manifest-checksum"] and kind == 1
        found = unpacked(content)
        assert len(found) == uncompressed
        return dict(json.loads(found))

    @property
    def tar_split(self) -> list[dict[str, Any]]:
        offset, size, uncompressed = self._position("tarsplit-position")
        content = self.blob[offset : offset + size]
        assert digest(content) == self.toc["tarSplitDigest"]
        found = unpacked(content)
        assert len(found) == uncompressed
        lines = [json.loads(line) for line in found.splitlines()]
        assert [line["position"] for line in lines] == list(range(len(lines)))
        return lines

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Name -> entry of a file, without those of its other chunks."""
        return {one["name"]: one for one in self.toc["entries"] if one["type"] != "chunk"}

    @property
    def chunk_digests(self) -> list[str]:
        """Of files in several chunks: what podman looks for in the layers that it has."""
        return [one["chunkDigest"] for one in self.toc["entries"] if "chunkDigest" in one]

    def tar(self) -> bytes:
        """Made from the tar's headers and the files, each checked by its digests and its checksum."""
        files = dict(self.files())
        found = []
        for line in self.tar_split:
            payload = base64.b64decode(line["payload"] or "")
            if line["type"] == 1 and line.get("size"):
                content = files[line["name"]]
                assert len(content) == line["size"] and crc64.go_iso(content).to_bytes(8, "big") == payload
                found.append(content)
            elif line["type"] == 2:
                found.append(payload)
        return b"".join(found)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Each file that is not empty, chunk by chunk."""
        entries = [one for one in self.toc["entries"] if one.get("offset")]
        while entries:
            count = next((at for at, one in enumerate(entries[1:], 1) if one["type"] != "chunk"), len(entries))
            first, chunks, entries = entries[0], entries[:count], entries[count:]
            places = [*(one["offset"] for one in chunks), first["endOffset"]]
            parts = [self._frame(start, end) for start, end in pairwise(places)]
            done = 0
            for chunk, part in zip(chunks, parts, strict=True):
                if count > 1:
                    assert (chunk["chunkSize"], chunk["chunkDigest"]) == (len(part), digest(part))
                    assert chunk.get("chunkOffset", 0) == done
                assert (chunk.get("chunkType") == "zeros") <= (not part.strip(b"\0"))
                done += len(part)
            content = b"".join(parts)
            assert (first["digest"], first["size"]) == (digest(content), len(content))
            yield first["name"], content

    def _frame(self, start: int, end: int) -> bytes:
        """One whole frame, and nothing else."""
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        found: bytes = unpacker.decompress(self.blob[start:end])
        assert unpacker.eof and not unpacker.unused_data
        return found

    def _position(self, name: str) -> list[int]:
        return [int(number) for number in self.annotations[f"{PREFIX}{name}"].split(":")]


def unpacked(content: bytes) -> bytes:
    found: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return found


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
