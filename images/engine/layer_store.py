"""Layers in the engine's own store (overlay2), as the very tars that they came as.

An export (`docker save`) copies the whole image to the engine's disk first, and hands all of it out. The store gives
single layers, at the speed of the disk, to who may read it: root on the engine's machine. Beside each layer's files the
engine keeps its tar without their contents ("tar-split": github.com/vbatts/tar-split, `tar/storage`; moby
`layer/filestore.go` has the paths). Whether a tar is the right one is told by its digest, which readers must check.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1 << 20
_FILE, _SEGMENT = 1, 2
"""Kinds of entries: the content of a file, and bytes as they are (headers, padding)."""


@dataclass(frozen=True, kw_only=True)
class StoredLayer:
    """A layer in the store. `diff_id` is the digest of its tar, `size` the bytes of its files, no headers."""

    diff_id: str
    size: int
    split: Path
    files: Path


def layers(data_root: Path, diff_ids: Sequence[str]) -> dict[str, StoredLayer]:
    """The layers of an image, given bottom first, by diff ID; nothing unless each of them can be read here."""
    found: dict[str, StoredLayer] = {}
    chain = ""
    for diff_id in diff_ids:
        chain = f"sha256:{hashlib.sha256(f'{chain} {diff_id}'.encode()).hexdigest()}" if chain else diff_id
        record = data_root / "image/overlay2/layerdb/sha256" / chain.removeprefix("sha256:")
        try:
            files = data_root / "overlay2" / (record / "cache-id").read_text().strip() / "diff"
            size = int((record / "size").read_text())
        except (OSError, ValueError):
            return {}
        split = record / "tar-split.json.gz"
        if not (os.access(split, os.R_OK) and os.access(files, os.R_OK | os.X_OK)):
            return {}
        found[diff_id] = StoredLayer(diff_id=diff_id, size=size, split=split, files=files)
    return found


def config(data_root: Path, image_id: str) -> bytes | None:
    """An image's configuration; None where it can't be read here."""
    path = data_root / "image/overlay2/imagedb/content/sha256" / image_id.removeprefix("sha256:")
    try:
        return path.read_bytes()
    except OSError:
        return None


def tar(layer: StoredLayer) -> Iterator[bytes]:
    """The tar of a layer, in chunks of any size. Raises OSError, ValueError for a store that is damaged."""
    with gzip.open(layer.split, "rb") as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["type"] == _SEGMENT:
                yield base64.b64decode(entry["payload"])
            elif entry["type"] == _FILE and entry.get("size"):
                yield from _content(os.path.join(os.fsencode(layer.files), _name(entry)), entry["size"])  # noqa: PTH118


def _name(entry: dict[str, str]) -> bytes:
    """The path of a file in its layer: names that are no UTF-8 are kept apart."""
    raw = entry.get("name_raw")
    return base64.b64decode(raw) if raw else os.fsencode(entry["name"].lstrip("/"))


def _content(path: bytes, size: int) -> Iterator[bytes]:
    left = size
    with open(path, "rb", buffering=0) as stream:  # noqa: PTH123  # pathlib has no paths of bytes
        while left:
            chunk = stream.read(min(_CHUNK, left))
            if not chunk:
                raise ValueError(f"{os.fsdecode(path)} has fewer bytes than the engine noted")
            left -= len(chunk)
            yield chunk
