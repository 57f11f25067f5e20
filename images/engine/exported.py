"""What leaves the engine of an image: its layers' tars and configuration (to a registry), and what each layer has.

From the engine's own store (layers.py) where that can be read, else from an export.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import posixpath
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from images.engine.archive import ChunkReader
from images.engine.failures import EngineError
from images.engine.layers import (
    CONFIGURATIONS,
    FILE,
    SEGMENT,
    StoredLayer,
    content_of,
    members_of,
    opened,
    reading,
    split,
    stored,
)
from images.engine.runtime import CLASSIC_STORE, ImageInfo
from images.errors import Problem

if TYPE_CHECKING:
    from images.engine.client import Engine

_CHUNK = 1 << 20


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


class LayerEntry(NamedTuple):
    """One path of a layer's tar, with no slash around it."""

    path: str
    kind: str
    """`file`, `folder`, `link`, `hard link`, `whiteout` (it removes what lies below of this name) or `other`."""
    mode: int
    owner: tuple[int, int]
    time: int
    """Seconds since 1970."""
    link: str
    content: str
    """Files of one content have one text here, in the layers that were read together."""


Tree = Mapping[str, LayerEntry]
"""Path, with no slash before it -> what is there."""
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_IMPLIED = LayerEntry("", "folder", 0o755, (0, 0), 0, "", "")
_MOUNTED = ("dev/", "proc/", "sys/")
_LAID_OVER = ("etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab", ".dockerenv")
"""Engines have their own of these. A base has some, of the machine that made it."""


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
    config = root / CONFIGURATIONS / info.id.removeprefix("sha256:")
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
    with reading(where):
        yield from chunks


def stored_tar(layer: StoredLayer) -> Iterator[bytes]:
    """The tar of a layer, in chunks of any size. Raises OSError, ValueError for a store that is damaged."""
    for entry in split(layer):
        if entry["type"] == SEGMENT:
            yield base64.b64decode(entry["payload"])
        elif entry["type"] == FILE:
            yield from content_of(layer, entry)


def entries(engine: Engine, info: ImageInfo) -> list[list[LayerEntry]]:
    """Return what each layer of an image has, bottom first.

    The engine's store says it without the files' contents; an export has to be read whole. Raises EngineError.
    """
    found = stored(Path(engine.facts.data_root), info.layers) if engine.facts.local else {}
    with reading(info.id):
        if found:
            order = [found[diff_id] for diff_id in info.layers]
            return _made_sure(order, [list(_listed(layer)) for layer in order])
    read = {}
    for part in _exported_parts(engine, info, info.layers):
        if part.digest != info.id:
            digest = hashlib.sha256()
            stream = ChunkReader(_hashed(part.chunks, digest))
            with reading(info.id), tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as tar:
                listing = [_entry(member, tar, "") for member in tar]
                stream.readall()
            read[f"sha256:{digest.hexdigest()}"] = listing
    return [read[diff_id] for diff_id in info.layers]


def unseen(engine: Engine, info: ImageInfo) -> tuple[list[tuple[bool, str, bytes]], int] | None:
    """Files of an image's layers that no container shows, and how many entries the layers have. Raises EngineError.

    Of each: whether it is more than a base's that a step above replaces, its path, and 64 MiB at most of its content.
    None: the engine's store can't be read here.
    """
    found = stored(Path(engine.facts.data_root), info.layers) if engine.facts.local else {}
    if not found:
        return None
    layers, files = entries(engine, info), []
    with reading(info.id):
        for number, path in hidden(layers):
            with opened(found[info.layers[number]], path) as stream:
                files.append((bool(number) or path.startswith(_MOUNTED), path, stream.read(_MOST_READ)))
    return files, sum(map(len, layers))


def hidden(layers: Sequence[Sequence[LayerEntry]]) -> Iterator[tuple[int, str]]:
    """Layer and path of each file of which a later layer has another or none, or that a mount of engines lies over."""
    shown = tree(layers)
    for number, layer in enumerate(layers):
        for one in layer:
            after = shown.get(one.path)
            gone = not after or one.content != after.content or one.path.startswith(_MOUNTED)
            gone = gone or one.path in _LAID_OVER
            if gone and one.kind == "file":
                yield number, one.path


def tree(layers: Iterable[Sequence[LayerEntry]], below: Tree | None = None) -> dict[str, LayerEntry]:
    """What layers make, the lowest first (OCI image specification, layer.md: whiteouts, opaque folders).

    Whoever writes a tar by hand may name a file below a link of the same layer, which engines follow, or below what is
    a link in the layers underneath: they make a folder of that, though none is named.
    """
    found = dict(below or {})
    for layer in layers:
        own: dict[str, LayerEntry] = {}
        links, made = set[str](), set[str]()
        for entry in layer:
            path = entry.path if links.isdisjoint(_above(entry.path)) else real_folder(own, entry.path)
            folder, _, name = path.rpartition("/")
            if name == _OPAQUE:
                _remove(found, folder, itself=False)
            elif entry.kind == "whiteout":
                _remove(found, f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
            else:
                source = own.get(_plain(entry.link)) if entry.kind == "hard link" else None
                if entry.kind != "folder" and (path in made or getattr(found.get(path), "kind", "") == "folder"):
                    _remove(found, path)
                    _remove(own, path)
                own[path] = (source or entry)._replace(path=path)
            made.update(_above(path))
            links |= {path} if entry.kind == "link" else set()
        implied = (one for one in made - own.keys() if one in found and found[one].kind != "folder")
        found |= {one: _IMPLIED._replace(path=one) for one in implied} | own
    return found


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def real(tree: Tree, path: str) -> str:
    """Where a path leads, all links followed."""
    done: list[str] = []
    left = [part for part in reversed(path.split("/")) if part]
    for _ in range(200):
        if not left:
            break
        part = left.pop()
        if part == "..":
            done = done[:-1]
            continue
        entry = tree.get("/".join([*done, part])) if part != "." else None
        if entry and entry.kind == "link":
            done = [] if entry.link.startswith("/") else done
            left += [one for one in reversed(entry.link.split("/")) if one]
        elif part != ".":
            done.append(part)
    return "/".join(done)


def real_folder(tree: Tree, path: str) -> str:
    """A path whose folders are no links; its last part may be one."""
    folder, _, name = path.rpartition("/")
    return f"{real(tree, folder)}/{name}".lstrip("/")


def _remove(found: dict[str, LayerEntry], path: str, *, itself: bool = True) -> None:
    """Remove what lies at a path and below it, or below it alone."""
    entry = found.pop(path, None) if itself else None
    if not entry or entry.kind == "folder":
        for inside in [one for one in found if one.startswith(f"{path}/")]:
            del found[inside]


@lru_cache(maxsize=32)
def _listed(layer: StoredLayer) -> Sequence[LayerEntry]:
    """From the headers alone; the engine keeps a checksum of each file beside them. Of an image and what stands on it
    most layers are the same."""
    *members, (end, _) = members_of(layer)
    headers = io.BytesIO(b"".join([*(header for header, _ in members), end, bytes(tarfile.BLOCKSIZE)]))
    with tarfile.open(fileobj=headers, mode="r:", errors="surrogateescape") as tar:
        headers.seek(0)  # the contents are not there: each header follows the one before it
        sums = (f"{entry.get('size', 0)} {entry.get('payload') or ''}" for _, entry in members)
        return tuple(_entry(tarfile.TarInfo.fromtarfile(tar), None, one) for one in sums)


def _made_sure(order: Sequence[StoredLayer], listings: list[list[LayerEntry]]) -> list[list[LayerEntry]]:
    """The same; a file that a layer has again, as if nothing were changed, by its digest: a checksum can be met."""
    before: dict[str, tuple[int, int]] = {}
    for layer, listing in enumerate(listings):
        for index, entry in enumerate(listing):
            at, which = before.get(entry.path, (layer, index))
            if entry.kind == "file" and at != layer and listings[at][which] == entry:
                for one, position in ((at, which), (layer, index)):
                    with opened(order[one], entry.path) as stream:
                        digest = hashlib.file_digest(stream, "sha256").hexdigest()
                    listings[one][position] = listings[one][position]._replace(content=digest)
            before[entry.path] = layer, index
    return listings


_MOST_READ = 64 << 20
_KINDS = {tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link"}


def _entry(member: tarfile.TarInfo, tar: tarfile.TarFile | None, checksum: str) -> LayerEntry:
    """Return what a tar's member is. `checksum`: of its content, where `tar` is None and that can't be read."""
    path = _plain(member.name)
    kind = "file" if member.isreg() else _KINDS.get(member.type, "other")
    # A file of such a name stands for a deletion, whatever the name ends in: no layer can hold it as a file.
    if kind == "file" and path.rpartition("/")[2].startswith(_WHITEOUT):
        kind = "whiteout"
    content = checksum
    if tar and kind == "file" and (stream := tar.extractfile(member)):
        digest = hashlib.sha256()
        for chunk in iter(partial(stream.read, _CHUNK), b""):
            digest.update(chunk)
        content = digest.hexdigest()
    owner = (member.uid, member.gid)
    link = member.linkname if kind in ("link", "hard link") else ""
    return LayerEntry(path, kind, member.mode, owner, int(member.mtime), link, content if kind == "file" else "")


def _plain(name: str) -> str:
    """A path as engines write it: `usr//bin/../bin/git` is that of another file's, too."""
    return posixpath.normpath(f"/{name}").lstrip("/")


def _hashed(chunks: Iterable[bytes], digest: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
