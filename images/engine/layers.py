"""The layers of images that the engine holds, as the very tars that they came as.

An export (`docker save`) copies the whole image to the engine's disk first, and hands all of it
out. The engine's own store (overlay2) gives single layers, at the speed of the disk, to who may
read it: root on the engine's machine. Beside each layer's files it keeps the tar without their
contents ("tar-split": github.com/vbatts/tar-split, `tar/storage`; moby `layer/filestore.go` has the
paths). Whether a tar is the right one is told by its digest, which readers check.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images.engine import configuration
from images.engine.configuration import SUITE
from images.engine.containers import asking
from images.engine.failures import EngineError
from images.engine.runtime import ImageInfo
from images.errors import Problem
from images.host import cache
from images.host.hashing import oci_digest

if TYPE_CHECKING:
    from images.engine.client import Engine

_CHUNK = 1 << 20
CONFIGURATIONS = "image/overlay2/imagedb/content/sha256"
CANONICAL = "canonical-layers-1"
"""Folder of the cache with canonical diff IDs.

A change of the canonical form takes another number.
"""
FILE, SEGMENT = 1, 2
"""Kinds of entries of a tar-split: the content of a file, and bytes as they are (headers,
padding)."""
_OF_THE_SUITE = (
    *(b"opt/truetag/", b"etc/profile.d/truetag_", b"etc/apt/apt.conf.d/docker-clean"),
    *(b"usr/local/bin/validate", b"usr/local/bin/doctor"),
)
"""What templates/scripts/suite.sh writes."""


@dataclass(frozen=True, kw_only=True)
class StoredLayer:
    """A layer in the store.

    `diff_id` is the digest of its tar, `size` the bytes of its files, no headers.
    """

    diff_id: str
    size: int
    split: Path
    files: Path


@contextmanager
def reading(where: str) -> Iterator[None]:
    """What can't be read of a layer, as an error of the engine."""
    with asking(where):
        try:
            yield
        except (ValueError, LookupError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            then = "is its disk whole? build the image anew, or take another engine with --engine"
            problem = Problem(where=where, cause=f"a layer can't be read: {error}", then=then)
            raise EngineError(problem) from None


def stored(data_root: Path, diff_ids: Sequence[str]) -> dict[str, StoredLayer]:
    """The layers of an image, given bottom first, by diff ID; nothing unless each of them can be
    read here.
    """
    found: dict[str, StoredLayer] = {}
    chain = ""
    for diff_id in diff_ids:
        chain = oci_digest(f"{chain} {diff_id}".encode()) if chain else diff_id
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


def canonical_diff_id(layer: StoredLayer) -> str:
    """Return the diff ID of a layer's files as engines of today write what a step made, whichever
    engine this is.

    Docker 20.10 writes the kind of a file into its mode, and the names that the engine's machine
    has for users and groups; 26.1 and 28.5 write neither. And overlay2 walks the folder of a layer,
    but above a step that was built again and came out as a layer that was there it compares two
    folders, and sorts by whole path: `cuda.h` then stands before what `cuda/` holds (moby,
    builder-next/adapters/snapshot/layer.go: a parent with another cache ID). The files are read
    once for each layer. Raises OSError, ValueError for a store that is damaged.
    """
    known = cache.folder() / CANONICAL / layer.diff_id.removeprefix("sha256:")
    if known.is_file():
        return known.read_text(encoding="ascii")
    *members, end = members_of(layer)
    names = [name_of(entry).rstrip(b"/") for _, entry in members]
    canonical = [(_without_names(header), entry) for header, entry in members]
    if names == sorted(names):
        places = sorted(range(len(names)), key=lambda place: names[place].split(b"/"))
        canonical = [canonical[place] for place in places]
    if canonical == members:
        return layer.diff_id

    digest = hashlib.sha256()
    for chunk in tar_of(layer, [*canonical, end]):
        digest.update(chunk)
    diff_id = f"sha256:{digest.hexdigest()}"
    with suppress(OSError):  # it is computed again next time
        cache.write_whole(known, diff_id.encode())
    return diff_id


def _without_names(header: bytes) -> bytes:
    """Return the header of a file without the names of its owners, and without its kind in the
    mode.

    Its last block is the ustar one.
    """
    block = bytearray(header[-tarfile.BLOCKSIZE :])
    block[100:108] = b"%07o\0" % (int(block[100:107].rstrip(b"\0 ") or b"0", 8) & 0o7777)
    block[265:329] = bytes(64)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return header[: -tarfile.BLOCKSIZE] + bytes(block)


@dataclass(frozen=True, kw_only=True)
class LayerReading:
    """What the layers and the settings of an image come to, for comparing them with recorded
    ones.
    """

    payload: Mapping[str, str]
    """Layer -> canonical diff ID, the lowest first, and the settings (configuration.payload),
    with the suite's."""
    as_stored: Mapping[str, str]
    """Layer -> diff ID as this engine wrote it."""
    canonical: bool
    """The engine's store could be read.

    Else a layer that differs may hold the same files in another form.
    """
    beside_suite: tuple[str, ...] = ()
    """Paths in the suite's layer that are not the suite's."""

    @property
    def compared(self) -> dict[str, str]:
        """Return the payload without the suite's layer, where that holds the suite and nothing
        else.
        """
        is_only_suite = self.canonical and not self.beside_suite
        return {
            name: digest
            for name, digest in self.payload.items()
            if name != SUITE or not is_only_suite
        }


def read_layers(engine: Engine, info: ImageInfo, known: Mapping[str, str]) -> LayerReading:
    """Read the layers of an image in the engine's own store; of an engine elsewhere, take them as
    it names them.

    `known`: diff ID as some engine writes it -> canonical one, of layers that need not be read.
    Raises EngineError.
    """
    found = stored(Path(engine.facts.data_root), info.layers) if engine.facts.local else {}
    by_diff_id = canonical_diff_ids(found, known, info.id)
    steps = engine.steps(info.id)
    as_stored = configuration.payload(info, steps)
    canonical_layers = tuple(by_diff_id.get(diff_id, diff_id) for diff_id in info.layers)
    suite = found.get(as_stored.get(SUITE, ""))
    return LayerReading(
        payload=configuration.payload(replace(info, layers=canonical_layers), steps),
        as_stored=as_stored,
        canonical=bool(found),
        beside_suite=beside_suite(suite) if suite else (),
    )


def canonical_diff_ids(
    found: Mapping[str, StoredLayer], known: Mapping[str, str], where: str
) -> dict[str, str]:
    """Return diff ID -> canonical one, of layers in the store. Raises EngineError."""

    def canonical(layer: StoredLayer) -> str:
        return known.get(layer.diff_id) or canonical_diff_id(layer)

    with reading(where), ThreadPoolExecutor() as pool:
        return dict(zip(found, pool.map(canonical, found.values()), strict=True))


def beside_suite(layer: StoredLayer) -> tuple[str, ...]:
    """Return the paths of the suite's layer that are not the suite's own.

    Folders on the way there are no finding.
    """
    names = [name_of(entry) for entry in split(layer) if entry["type"] == FILE]
    strange = [
        name for name in names if not name.endswith(b"/") and not name.startswith(_OF_THE_SUITE)
    ]
    return tuple(f"/{os.fsdecode(name)}" for name in strange)


def split(layer: StoredLayer) -> Iterator[Any]:
    """Yield the entries of a layer's tar-split."""
    with gzip.open(layer.split, "rb") as lines:
        yield from json.loads(b"[%b]" % b",".join(lines))  # as one list: in half the time


def members_of(layer: StoredLayer) -> Iterator[tuple[bytes, Any]]:
    """Yield the header of each file in a layer's tar, and its entry; at last what ends the tar,
    without one.
    """
    pending, padding = b"", 0
    for entry in split(layer):
        if entry["type"] == SEGMENT:
            pending += base64.b64decode(entry["payload"])
        elif entry["type"] == FILE:
            yield pending[padding:], entry
            pending, padding = b"", -entry.get("size", 0) % tarfile.BLOCKSIZE
    yield pending[padding:], None


def tar_of(layer: StoredLayer, members: Iterable[tuple[bytes, Any]]) -> Iterator[bytes]:
    """Yield a layer's tar with these members, in chunks. Raises OSError: a file is gone."""
    for header, entry in members:
        yield header
        if entry and entry.get("size", 0):
            with open_file(layer, os.fsdecode(name_of(entry))) as stream:
                yield from iter(partial(stream.read, _CHUNK), b"")
            yield bytes(-entry["size"] % tarfile.BLOCKSIZE)


def name_of(entry: Mapping[str, Any]) -> bytes:
    """Return the path of an entry, without a slash in front."""
    raw = entry.get("name_raw")  # of names that are no UTF-8
    return base64.b64decode(raw) if raw else os.fsencode(entry["name"].lstrip("/"))


def open_file(layer: StoredLayer, path: str) -> FileIO:
    """Open a file of a layer. Raises OSError."""
    return FileIO(f"{layer.files}/{path}")
