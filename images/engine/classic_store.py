"""Reads layers and configurations in Docker's classic store, by the storage driver overlay2.

The store keeps the files of a layer in a folder, and beside it the rest of the layer's tar: its
headers, with a checksum of each file ("tar-split": github.com/vbatts/tar-split, `tar/storage`). So
single layers can be had as they came, at the speed of the disk, while an export (`docker save`)
copies and sends the whole image. Only root on the engine's machine may read the store. Its paths
are in moby, `layer/filestore.go`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import IO, Any, cast

from images.engine.layer_tree import LayerEntry
from images.engine.stored_layer import (
    LayerTar,
    Member,
    ReadContent,
    StoredLayer,
    UnreadableLayersError,
    padding,
    read_all,
)
from images.host.hashing import oci_digest

DRIVER = "overlay2"
"""The storage driver whose layers are read here."""
_CONTENT, _SEGMENT = 1, 2
"""Kinds of rows of a tar-split: the content of a file, and bytes of the tar as they are (headers,
padding)."""


@dataclass(frozen=True, kw_only=True)
class ClassicLayer(StoredLayer):
    """A layer in the classic store. `size` is that of its files, without headers."""

    split: Path
    """The tar-split: JSON lines, compressed with gzip."""
    files: Path
    """The folder with the files of the layer."""

    def read_tar(self) -> LayerTar:
        """Return the members (files, folders, links) of the layer's tar; no file's content is read.

        They come from the tar-split, the record that Docker keeps of a layer's tar without the
        contents. Its rows are of two types: a segment has bytes of the tar as they are, and a
        content row stands for the content of one member (of size 0 for a folder). In a tar, content
        is padded to a multiple of 512 bytes. So the segments before a content row hold, first, the
        padding of the content before it, and then the header of its own member.
        """
        members = []
        between_contents = b""
        padding_size = 0
        for row in self._rows():
            if row["type"] == _SEGMENT:
                between_contents += base64.b64decode(row["payload"])
            elif row["type"] == _CONTENT:
                # The padding belongs to the member before this one.
                header = between_contents[padding_size:]
                size = row.get("size", 0)
                # A text that is equal for equal contents: size and checksum (`payload`). For an
                # empty content, some engines write a checksum and others none.
                content = f"{size} {row.get('payload')}" if size else "0"
                members.append(Member(header, _path_of(row), size, content))
                between_contents = b""
                padding_size = padding(size)
        return LayerTar(members, end=between_contents[padding_size:])

    def _rows(self) -> list[Any]:
        """Return the rows of its tar-split."""
        with gzip.open(self.split, "rb") as lines:
            # Parsing one list takes half as long as parsing each line.
            return cast("list[Any]", json.loads(b"[%b]" % b",".join(lines)))

    @contextmanager
    def contents(self) -> Iterator[ReadContent]:
        """Give access to the contents of members in any order."""
        yield self._read

    def _read(self, member: Member) -> Iterator[bytes]:
        """Yield the content of a member in chunks."""
        with self._open(os.fsdecode(member.path)) as stream:
            yield from read_all(stream)

    def _open(self, path: str) -> IO[bytes]:
        """Open a file of the layer."""
        return cast("IO[bytes]", FileIO(f"{self.files}/{path}"))

    def tar(self) -> Iterator[bytes]:
        """Yield its tar as it came, in chunks."""
        yield from self.tar_of(self.read_tar())

    def entries(self) -> Sequence[LayerEntry]:
        """Return its files, folders and links, in the order of its tar."""
        return _entries(self)

    def read_files(self, paths: Collection[str], most: int) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of these files of the layer; at most `most` bytes of each."""
        for path in paths:
            with self._open(path) as stream:
                yield path, stream.read(most)

    def hash_contents(self) -> dict[str, str]:
        """Return the SHA-256 of the files' contents, by `Member.content`."""
        hashes = {}
        for member in self.read_tar().members:
            digest = hashlib.sha256()
            # Only files have a content. A device or whiteout may not even be in the folder.
            if member.size:
                for chunk in self._read(member):
                    digest.update(chunk)
            hashes[member.content] = digest.hexdigest()
        return hashes


@lru_cache(maxsize=32)
def _entries(layer: ClassicLayer) -> Sequence[LayerEntry]:
    """Return the entries of a layer. Cached: an image and those derived from it share layers."""
    return StoredLayer.entries(layer)


@lru_cache(maxsize=32)
def find_private_file(layer: ClassicLayer) -> str:
    """Return the path of a file of a layer that this user can't read; empty if there is none.

    The store of a rootless engine belongs to the user who started it, but only root may read what
    is private to other users of an image. Cached, as `_entries` is.
    """
    for entry in _entries(layer):
        if entry.kind == "file" and not os.access(f"{layer.files}/{entry.path}", os.R_OK):
            return entry.path
    return ""


def _path_of(row: Mapping[str, Any]) -> bytes:
    """Return the path in a row of a tar-split, without a slash in front."""
    raw_name = row.get("name_raw")  # set if the name is not UTF-8
    return base64.b64decode(raw_name) if raw_name else os.fsencode(row["name"].lstrip("/"))


def find_layers(data_root: Path, diff_ids: Sequence[str]) -> dict[str, StoredLayer]:
    """Find the layers of an image in the folder of a Docker engine on this machine.

    `data_root` is that folder, such as /var/lib/docker, of an engine that does not store images in
    containerd. `diff_ids` are the digests of all the image's layers, uncompressed, the lowest layer
    first. Returns digest -> layer. Raises UnreadableLayersError unless this process can read each
    of them.
    """
    layers: dict[str, StoredLayer] = {}
    chain_id = ""
    for diff_id in diff_ids:
        # The store names a layer by its chain ID, which depends on all layers below it (OCI image
        # specification, config.md, "Layer ChainID").
        chain_id = oci_digest(f"{chain_id} {diff_id}".encode()) if chain_id else diff_id
        record = data_root / "image/overlay2/layerdb/sha256" / chain_id.removeprefix("sha256:")
        try:
            # `cache-id` names the folder with the layer's files. The tar-split has the rest of its
            # tar: the headers.
            cache_id = (record / "cache-id").read_text().strip()
            files = data_root / "overlay2" / cache_id / "diff"
            split = record / "tar-split.json.gz"
            is_readable = os.access(split, os.R_OK) and os.access(files, os.R_OK | os.X_OK)
        except OSError:
            is_readable = False
        if not is_readable:
            raise UnreadableLayersError(
                f"this user can't read the engine's layers in {data_root}: give the command as "
                "root on the engine's own machine"
            )
        layer = ClassicLayer(diff_id=diff_id, split=split, files=files)
        # A file in the layer that this user can't read; empty if none. Root may read everything.
        private_file = find_private_file(layer) if os.geteuid() else ""
        if private_file:
            raise UnreadableLayersError(
                f"this user can't read /{private_file} in a layer, as only another user of the "
                "image may: give the command as root on the engine's own machine"
            )
        layers[diff_id] = layer
    return layers


def find_configuration(data_root: Path, digest: str) -> bytes | None:
    """Return the configuration of an image; None if it can't be read here."""
    path = data_root / "image/overlay2/imagedb/content/sha256" / digest.removeprefix("sha256:")
    try:
        return path.read_bytes()
    except OSError:
        return None
