"""What leaves the engine of an image: its layers' tars and configuration (to a registry), and what each layer has.

From the engine's own store (layers.py) where that can be read, else from an export.
"""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from images.engine.failures import EngineError
from images.engine.layers import (
    CONFIGURATIONS,
    StoredLayer,
    members_of,
    open_file,
    reading,
    stored,
    tar_of,
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
        chunks = _readable(tar_of(layer, members_of(layer)), info.id)
        yield ImagePart(digest=layer.diff_id, size=layer.size, chunks=chunks, following=left)


def _exported_parts(
    engine: Engine, info: ImageInfo, wanted: Collection[str]
) -> Iterator[ImagePart]:
    digits, has_config = info.id.removeprefix("sha256:"), False
    for member, data in engine.exported(info.id):
        digest = (
            f"sha256:{member.name.removeprefix('blobs/sha256/')}"
            if member.name.startswith("blobs/")
            else ""
        )
        if digest == info.id or member.name == f"{digits}.json":
            content = data.read()
            has_config = b'"rootfs"' in content
            yield ImagePart(digest=info.id, size=len(content), chunks=iter([content]))
        elif digest in wanted or member.name.endswith("/layer.tar"):
            yield ImagePart(
                digest=digest,
                size=member.size,
                chunks=_readable(iter(partial(data.read, _CHUNK), b""), info.id),
            )
    if not has_config:
        raise no_configuration(info.id)


def no_configuration(image_id: str) -> EngineError:
    """What a verdict names is the digest of a configuration: with other IDs nothing can be published."""
    then = f"{CLASSIC_STORE}; then build again"
    problem = Problem(
        where=image_id,
        cause="the engine's image ID is not the digest of a configuration",
        then=then,
    )
    return EngineError(problem)


def _readable(chunks: Iterator[bytes], where: str) -> Iterator[bytes]:
    with reading(where):
        yield from chunks


def entries(engine: Engine, info: ImageInfo) -> list[list[LayerEntry]] | None:
    """Return what each layer of an image has, bottom first.

    None: the engine's store can't be read here. Raises EngineError.
    """
    found = stored(Path(engine.facts.data_root), info.layers) if engine.facts.local else {}
    with reading(info.id):
        return [list(_stored_entries(found[diff_id])) for diff_id in info.layers] if found else None


def unseen(engine: Engine, info: ImageInfo) -> tuple[list[tuple[int, str, bytes]], int] | None:
    """Return the files of an image's layers that no container shows, and how many entries the layers have.

    Of each: the number of its layer, its path, and 64 MiB at most of its content. None: the engine's store can't be
    read here. Raises EngineError.
    """
    layers = entries(engine, info)
    if layers is None:
        return None
    found, files = stored(Path(engine.facts.data_root), info.layers), []
    with reading(info.id):
        for number, path in hidden(layers):
            with open_file(found[info.layers[number]], path) as stream:
                files.append((number, path, stream.read(_MOST_READ)))
    return files, sum(map(len, layers))


def hidden(layers: Sequence[Sequence[LayerEntry]]) -> Iterator[tuple[int, str]]:
    """Yield layer and path of each file of which a later layer has another, or none."""
    shown = tree(layers)
    for number, layer in enumerate(layers):
        for entry in layer:
            after = shown.get(entry.path)
            if entry.kind == "file" and (after is None or after.content != entry.content):
                yield number, entry.path


def tree(
    layers: Iterable[Sequence[LayerEntry]], below: Tree | None = None
) -> dict[str, LayerEntry]:
    """Return what layers make, the lowest first (OCI image specification, layer.md: whiteouts, opaque folders)."""
    shown = dict(below or {})
    for layer in layers:
        own: dict[str, LayerEntry] = {}
        for entry in layer:
            folder, _, name = entry.path.rpartition("/")
            if name == _OPAQUE:
                _remove_inside(shown, folder)
            elif entry.kind == "whiteout":
                _remove(shown, f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
            else:
                former = shown.get(entry.path)
                if former and former.kind == "folder" and entry.kind != "folder":
                    _remove(shown, entry.path)
                # A hard link is the file that it names, under one more name.
                target = own.get(entry.link, entry) if entry.kind == "hard link" else entry
                own[entry.path] = target._replace(path=entry.path)
        shown |= own
    return shown


def _remove(shown: dict[str, LayerEntry], path: str) -> None:
    """Remove what lies at a path, and all that is in it."""
    entry = shown.pop(path, None)
    if entry is None or entry.kind == "folder":
        _remove_inside(shown, path)


def _remove_inside(shown: dict[str, LayerEntry], folder: str) -> None:
    for path in [path for path in shown if path.startswith(f"{folder}/")]:
        del shown[path]


@lru_cache(maxsize=32)
def _stored_entries(layer: StoredLayer) -> Sequence[LayerEntry]:
    """Return what a layer in the engine's store has, from the headers in its tar-split.

    The engine keeps a checksum of each file beside them. An image and those derived from it share most layers.
    """
    *members, (end, _) = members_of(layer)
    headers = io.BytesIO(
        b"".join([*(header for header, _ in members), end, bytes(tarfile.BLOCKSIZE)])
    )
    found = []
    with tarfile.open(fileobj=headers, mode="r:", errors="surrogateescape") as tar:
        headers.seek(0)  # the contents are not there: each header follows the one before it
        for _, entry in members:
            content = f"{entry.get('size', 0)} {entry.get('payload') or ''}"
            found.append(_entry(tarfile.TarInfo.fromtarfile(tar), content))
    return found


_MOST_READ = 64 << 20
_KINDS = {tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link"}


def _entry(member: tarfile.TarInfo, content: str) -> LayerEntry:
    """Return what a tar's member is. `content`: a checksum of it."""
    path = _normal(member.name)
    kind = "file" if member.isreg() else _KINDS.get(member.type, "other")
    # A file of such a name stands for a deletion, whatever the name ends in: no layer can hold it as a file.
    if kind == "file" and path.rpartition("/")[2].startswith(_WHITEOUT):
        kind = "whiteout"
    link = member.linkname if kind == "link" else ""
    if kind == "hard link":
        link = _normal(member.linkname)
    return LayerEntry(
        path=path,
        kind=kind,
        mode=member.mode,
        owner=(member.uid, member.gid),
        time=int(member.mtime),
        link=link,
        content=content if kind == "file" else "",
    )


def _normal(name: str) -> str:
    """Return a path without slash or `./` in front."""
    return posixpath.normpath(f"/{name}").lstrip("/")
