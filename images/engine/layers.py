"""The layers of images that the engine holds, as the very tars that they came as.

An export (`docker save`) copies the whole image to the engine's disk first, and hands all of it out. The engine's own
store (overlay2) gives single layers, at the speed of the disk, to who may read it: root on the engine's machine. Beside
each layer's files it keeps the tar without their contents ("tar-split": github.com/vbatts/tar-split, `tar/storage`;
moby `layer/filestore.go` has the paths). Whether a tar is the right one is told by its digest, which readers check.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from images.engine import configuration
from images.engine.archive import ChunkReader
from images.engine.configuration import SUITE
from images.engine.containers import asking
from images.engine.failures import EngineError
from images.engine.runtime import CLASSIC_STORE, ImageInfo
from images.errors import Problem
from images.host import cache
from images.host.hashing import oci_digest

if TYPE_CHECKING:
    from images.engine.client import Engine

_CHUNK = 1 << 20
_CANONICAL = "canonical-layers-1"
"""Below the cache: what canonical_diff_id came to. Another number where it comes to anything else."""
_FILE, _SEGMENT = 1, 2
"""Kinds of entries of a tar-split: the content of a file, and bytes as they are (headers, padding)."""
_OF_THE_SUITE = (
    *(b"opt/truetag/", b"etc/profile.d/truetag_", b"etc/apt/apt.conf.d/docker-clean"),
    *(b"usr/local/bin/validate", b"usr/local/bin/doctor"),
)
"""What templates/scripts/suite.sh writes."""


@dataclass(frozen=True, kw_only=True)
class ImagePart:
    """A layer's tar, or the configuration, on its way out of the engine. Readers check its digest."""

    digest: str
    """Of the tar (its diff ID) or the configuration (the image ID); empty where only the content can tell."""
    size: int
    chunks: Iterator[bytes]
    """In any size. Of an export, they can be read until the next part is asked for."""
    following: int = 0
    """The sizes of all layers that come after this part; 0 where they are not known."""


@dataclass(frozen=True, kw_only=True)
class StoredLayer:
    """A layer in the store. `diff_id` is the digest of its tar, `size` the bytes of its files, no headers."""

    diff_id: str
    size: int
    split: Path
    files: Path


class LayerEntry(NamedTuple):
    """One path of a layer's tar, with no slash around it."""

    path: str
    kind: str
    """`file`, `folder`, `link`, `hard link` or `other`."""
    mode: int
    owner: tuple[int, int]
    time: int
    """Seconds since 1970."""
    link: str
    content: str
    """Files of one content have one text here, in the layers that were read together."""
    data: bytes | None


def parts(engine: Engine, info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
    """The configuration of an image, and the wanted layers (by diff ID), each once.

    From the engine's own folder, where it can be read: the largest layer first. Else from an export, in its order;
    engines before 25 do not say there which layer is which, and all of them come. Raises NoSuchImage, EngineError: the
    engine names images by something else than their configuration (the containerd image store).
    """
    if engine.facts.containerd_images:
        raise no_configuration(info.id)
    root = Path(engine.facts.data_root)
    found = stored(root, info.layers) if engine.facts.local else {}
    config = root / "image/overlay2/imagedb/content/sha256" / info.id.removeprefix("sha256:")
    if not found or not os.access(config, os.R_OK):
        yield from _exported_parts(engine, info, wanted)
        return
    layers = [found[diff_id] for diff_id in dict.fromkeys(wanted)]
    left = sum(layer.size for layer in layers)
    content = config.read_bytes()
    yield ImagePart(digest=info.id, size=len(content), chunks=iter([content]), following=left)
    for layer in sorted(layers, key=lambda one: one.size, reverse=True):
        left -= layer.size
        chunks = _readable(stored_tar(layer), info.id)
        yield ImagePart(digest=layer.diff_id, size=layer.size, chunks=chunks, following=left)


def _exported_parts(engine: Engine, info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
    digits, has_config = info.id.removeprefix("sha256:"), False
    for member, data in engine.exported(info.id):
        digest = f"sha256:{member.name.removeprefix('blobs/sha256/')}" if member.name.startswith("blobs/") else ""
        if digest == info.id or member.name == f"{digits}.json":
            content = data.read()
            has_config = b'"rootfs"' in content
            yield ImagePart(digest=info.id, size=len(content), chunks=iter([content]))
        elif digest in wanted or member.name.endswith("/layer.tar"):
            yield ImagePart(
                digest=digest, size=member.size, chunks=_readable(iter(partial(data.read, _CHUNK), b""), info.id)
            )
    if not has_config:
        raise no_configuration(info.id)


def no_configuration(image_id: str) -> EngineError:
    """What a verdict names is the digest of a configuration: with other IDs nothing can be published."""
    then = f"{CLASSIC_STORE}; then build again"
    problem = Problem(where=image_id, cause="the engine's image ID is not the digest of a configuration", then=then)
    return EngineError(problem)


def _readable(chunks: Iterator[bytes], where: str) -> Iterator[bytes]:
    with _reading(where):
        yield from chunks


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """What can't be read of a layer, as an error of the engine."""
    with asking(where):
        try:
            yield
        except (ValueError, LookupError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            then = "is its disk whole? build the image anew, or take another engine with --engine"
            problem = Problem(where=where, cause=f"a layer can't be read: {error}", then=then)
            raise EngineError(problem) from None


# --- the engine's store ---------------------------------------------------------------------------------------------


def stored(data_root: Path, diff_ids: Sequence[str]) -> dict[str, StoredLayer]:
    """The layers of an image, given bottom first, by diff ID; nothing unless each of them can be read here."""
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


def stored_tar(layer: StoredLayer) -> Iterator[bytes]:
    """The tar of a layer, in chunks of any size. Raises OSError, ValueError for a store that is damaged."""
    for entry in _split(layer):
        if entry["type"] == _SEGMENT:
            yield base64.b64decode(entry["payload"])
        elif entry["type"] == _FILE:
            yield from _content(layer, entry)


def canonical_diff_id(layer: StoredLayer) -> str:
    """The diff ID of a layer's files as engines of today write what a step made, whichever engine this is.

    Docker 20.10 writes the kind of a file into its mode, and the names that the engine's machine has for users and
    groups; 26.1 and 28.5 write neither. And overlay2 walks the folder of a layer, but above a step that was built again
    and came out as a layer that was there it compares two folders, and sorts by whole path: `cuda.h` then stands before
    what `cuda/` holds (moby, builder-next/adapters/snapshot/layer.go: a parent with another cache ID).
    Raises OSError, ValueError for a store that is damaged.
    """
    *members, (end, _) = _members(layer)
    files = [(_name(entry).rstrip(b"/"), header, entry) for header, entry in members]
    names = [name for name, _, _ in files]
    walked = sorted(files, key=lambda one: one[0].split(b"/")) if names == sorted(names) else files
    plain = [(name, _plain(header), entry) for name, header, entry in walked]
    if plain == files:
        return layer.diff_id
    known = cache.folder() / _CANONICAL / layer.diff_id.removeprefix("sha256:")
    if known.is_file():
        return known.read_text(encoding="ascii")
    digest = hashlib.sha256()
    for _, header, entry in plain:
        digest.update(header)
        for chunk in _content(layer, entry):
            digest.update(chunk)
        digest.update(bytes(-entry.get("size", 0) % tarfile.BLOCKSIZE))
    digest.update(end)
    with suppress(OSError):  # else it is worked out again
        known.parent.mkdir(parents=True, exist_ok=True)
        partly = known.with_name(f".{known.name}.{os.getpid()}.{threading.get_ident()}")
        partly.write_text(f"sha256:{digest.hexdigest()}", encoding="ascii")
        partly.replace(known)
    return f"sha256:{digest.hexdigest()}"


def _plain(header: bytes) -> bytes:
    """A file's header in a tar, of which the last block is the ustar one, without names and the kind in the mode."""
    block = bytearray(header[-tarfile.BLOCKSIZE :])
    block[100:108] = b"%07o\0" % (int(block[100:107].rstrip(b"\0 ") or b"0", 8) & 0o7777)
    block[265:329] = bytes(64)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return header[: -tarfile.BLOCKSIZE] + bytes(block)


def payload(engine: Engine, info: ImageInfo) -> dict[str, str]:
    """What a verdict about an image is about, see configuration.py, less the suite's layer if it holds the suite alone.

    Its layers are canonical ones. All that is read in the engine's store: of an engine elsewhere all layers are
    compared as they are.
    """
    found = stored(Path(engine.facts.data_root), info.layers) if engine.facts.local else {}
    with _reading(info.id), ThreadPoolExecutor() as pool:
        canonical = dict(zip(found, pool.map(canonical_diff_id, found.values()), strict=True))
    steps = [one.created_by for one in reversed(engine.history(info.id))]
    suite = found.get(configuration.payload(info, steps).get(SUITE, ""))
    names = [_name(entry) for entry in _split(suite) if entry["type"] == _FILE] if suite else []
    said = configuration.payload(replace(info, layers=tuple(canonical.get(one, one) for one in info.layers)), steps)
    if suite and all(name.endswith(b"/") or name.startswith(_OF_THE_SUITE) for name in names):
        said.pop(SUITE, None)
    return said


def entries(engine: Engine, info: ImageInfo, wanted: Callable[[str], bool]) -> list[list[LayerEntry]]:
    """What each layer of an image has, bottom first; `wanted`: paths whose content comes along, 64 MiB at most.

    The engine's store says it without the files' contents; an export has to be read whole. Raises EngineError.
    """
    found = stored(Path(engine.facts.data_root), info.layers) if engine.facts.local else {}
    with _reading(info.id):
        if found:
            order = [found[diff_id] for diff_id in info.layers]
            return _made_sure(order, [_stored_entries(layer, wanted) for layer in order])
    read = {}
    for part in _exported_parts(engine, info, info.layers):
        if part.digest != info.id:
            digest = hashlib.sha256()
            stream = ChunkReader(_hashed(part.chunks, digest))
            with _reading(info.id), tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as tar:
                listing = [_entry(member, tar, wanted, "") for member in tar]
                stream.readall()
            read[f"sha256:{digest.hexdigest()}"] = listing
    return [read[diff_id] for diff_id in info.layers]


def _stored_entries(layer: StoredLayer, wanted: Callable[[str], bool]) -> list[LayerEntry]:
    """From the headers alone; the engine keeps a checksum of each file beside them."""
    *members, (end, _) = _members(layer)
    headers = io.BytesIO(b"".join([*(header for header, _ in members), end, bytes(tarfile.BLOCKSIZE)]))
    with tarfile.open(fileobj=headers, mode="r:", errors="surrogateescape") as tar:
        headers.seek(0)  # the contents are not there: each header follows the one before it
        listing = [
            _entry(
                tarfile.TarInfo.fromtarfile(tar), None, wanted, f"{entry.get('size', 0)} {entry.get('payload') or ''}"
            )
            for _, entry in members
        ]
    for index, one in enumerate(listing):
        if one.kind == "file" and wanted(one.path):
            with (layer.files / one.path).open("rb") as stream:
                listing[index] = one._replace(data=stream.read(_MOST_WANTED))
    return listing


def _made_sure(order: Sequence[StoredLayer], listings: list[list[LayerEntry]]) -> list[list[LayerEntry]]:
    """The same; a file that a layer has again, as if nothing were changed, by its digest: a checksum can be met."""
    before: dict[str, tuple[int, int]] = {}
    for layer, listing in enumerate(listings):
        for index, entry in enumerate(listing):
            at, which = before.get(entry.path, (layer, index))
            if entry.kind == "file" and at != layer and listings[at][which]._replace(data=entry.data) == entry:
                for one, position in ((at, which), (layer, index)):
                    with (order[one].files / entry.path).open("rb") as stream:
                        digest = hashlib.file_digest(stream, "sha256").hexdigest()
                    listings[one][position] = listings[one][position]._replace(content=digest)
            before[entry.path] = layer, index
    return listings


_MOST_WANTED = 64 << 20
_KINDS = {tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link"}


def _entry(
    member: tarfile.TarInfo, tar: tarfile.TarFile | None, wanted: Callable[[str], bool], said: str
) -> LayerEntry:
    path = member.name.removeprefix("./").strip("/")
    kind, data = "file" if member.isreg() else _KINDS.get(member.type, "other"), None
    if tar and kind == "file" and (stream := tar.extractfile(member)):
        digest = hashlib.sha256()
        data = stream.read(_MOST_WANTED) if wanted(path) else None
        digest.update(data or b"")
        for chunk in iter(partial(stream.read, _CHUNK), b""):
            digest.update(chunk)
        said = digest.hexdigest()
    owner, link = (member.uid, member.gid), member.linkname if kind.endswith("link") else ""
    content = said if kind == "file" else ""
    return LayerEntry(path, kind, member.mode, owner, int(member.mtime), link, content, data)


def _hashed(chunks: Iterable[bytes], digest: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


def _split(layer: StoredLayer) -> Iterator[Any]:
    with gzip.open(layer.split, "rb") as lines:
        yield from map(json.loads, lines)


def _members(layer: StoredLayer) -> Iterator[tuple[bytes, Any]]:
    """The header of each file in a layer's tar, and its entry; at last what ends the tar, with none."""
    pending, padding = b"", 0
    for entry in _split(layer):
        if entry["type"] == _SEGMENT:
            pending += base64.b64decode(entry["payload"])
        elif entry["type"] == _FILE:
            yield pending[padding:], entry
            pending, padding = b"", -entry.get("size", 0) % tarfile.BLOCKSIZE
    yield pending[padding:], None


def _name(entry: Mapping[str, Any]) -> bytes:
    raw = entry.get("name_raw")  # of names that are no UTF-8
    return base64.b64decode(raw) if raw else os.fsencode(entry["name"].lstrip("/"))


def _content(layer: StoredLayer, entry: Mapping[str, Any]) -> Iterator[bytes]:
    if not (left := entry.get("size", 0)):
        return
    path = os.path.join(os.fsencode(layer.files), _name(entry))  # noqa: PTH118
    with open(path, "rb", buffering=0) as stream:  # noqa: PTH123  # pathlib has no paths of bytes
        while left:
            chunk = stream.read(min(_CHUNK, left))
            if not chunk:
                raise ValueError(f"{os.fsdecode(path)} has fewer bytes than the engine noted")
            left -= len(chunk)
            yield chunk
