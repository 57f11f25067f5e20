"""Reads the layers and the configuration of an image out of the engine.

They come from the engine's own store (layers.py) where that can be read, else from an export.
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
    """A layer's tar, or the configuration of an image. Whoever reads it checks its digest."""

    digest: str
    """The tar's diff ID, or the image ID for the configuration; empty for a layer that the export
    does not name."""
    size: int
    chunks: Iterator[bytes]
    """The content, in chunks of any size. They must be read before the next part is asked for."""
    following: int = 0
    """Bytes of all layers that come after this part; 0 if not known."""


class LayerEntry(NamedTuple):
    """A file, folder or link in a layer. Paths have no slash at either end."""

    path: str
    kind: str
    """`file`, `folder`, `link`, `hard link`, `whiteout` or `other`.

    A whiteout `.wh.NAME` removes NAME of the layers below.
    """
    mode: int
    owner: tuple[int, int]
    time: int
    """Seconds since 1970."""
    link: str
    content: str
    """A text that is equal for files of equal content, among layers that were read together."""


Tree = Mapping[str, LayerEntry]
"""Path, with no slash before it -> what is there."""
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


def parts(engine: Engine, info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
    """Yield the configuration of an image, and its layers whose diff IDs are in `wanted`, each
    once.

    If the engine's own store can be read, the configuration comes first, then the largest layer.
    Else the parts come from an export, in its order. Exports of engines before version 25 do not
    name the layers, so all of them are yielded. Raises NoSuchImage, and EngineError if image IDs
    are not digests of configurations (the containerd image store).
    """
    if engine.facts.containerd_images:
        raise no_configuration(info.id)
    root = Path(engine.facts.data_root)
    layer_by_diff_id = stored(root, info.layers) if engine.facts.local else {}
    config = root / CONFIGURATIONS / info.id.removeprefix("sha256:")
    if not layer_by_diff_id or not os.access(config, os.R_OK):
        yield from _exported_parts(engine, info, wanted)
        return

    # dict.fromkeys: an image may have a layer twice.
    layers = [layer_by_diff_id[diff_id] for diff_id in dict.fromkeys(wanted)]
    remaining = sum(layer.size for layer in layers)
    content = config.read_bytes()
    yield ImagePart(digest=info.id, size=len(content), chunks=iter([content]), following=remaining)
    for layer in sorted(layers, key=lambda layer: layer.size, reverse=True):
        remaining -= layer.size
        chunks = _readable(tar_of(layer, members_of(layer)), info.id)
        yield ImagePart(digest=layer.diff_id, size=layer.size, chunks=chunks, following=remaining)


def _exported_parts(
    engine: Engine, info: ImageInfo, wanted: Collection[str]
) -> Iterator[ImagePart]:
    """Yield an image's configuration and wanted layers from an export (see `parts`)."""
    old_config_name = f"{info.id.removeprefix('sha256:')}.json"
    has_config = False
    for member, stream in engine.exported(info.id):
        # Engines from version 25 on name each file by its digest; older ones have the files
        # IMAGE_ID.json and FOLDER/layer.tar.
        digest = ""
        if member.name.startswith("blobs/"):
            digest = f"sha256:{member.name.removeprefix('blobs/sha256/')}"
        if digest == info.id or member.name == old_config_name:
            content = stream.read()
            has_config = b'"rootfs"' in content
            yield ImagePart(digest=info.id, size=len(content), chunks=iter([content]))
        elif digest in wanted or member.name.endswith("/layer.tar"):
            chunks = _readable(iter(partial(stream.read, _CHUNK), b""), info.id)
            yield ImagePart(digest=digest, size=member.size, chunks=chunks)
    if not has_config:
        raise no_configuration(info.id)


def no_configuration(image_id: str) -> EngineError:
    """Return the error that an engine's image ID is not the digest of a configuration.

    A verdict names an image by that digest, so nothing can be published from such an engine.
    """
    then = f"{CLASSIC_STORE}; then build again"
    problem = Problem(
        where=image_id,
        cause="the engine's image ID is not the digest of a configuration",
        then=then,
    )
    return EngineError(problem)


def _readable(chunks: Iterator[bytes], where: str) -> Iterator[bytes]:
    """Yield the chunks; raise EngineError, which names the image `where`, if reading them fails."""
    with reading(where):
        yield from chunks


def entries(engine: Engine, info: ImageInfo) -> list[list[LayerEntry]] | None:
    """Return the entries of each layer of an image, the bottom layer first.

    Returns None if the engine's store can't be read here. Raises EngineError if a layer is damaged.
    """
    if not engine.facts.local:
        return None
    layer_by_diff_id = stored(Path(engine.facts.data_root), info.layers)
    if not layer_by_diff_id:
        return None
    with reading(info.id):
        return [list(_stored_entries(layer_by_diff_id[diff_id])) for diff_id in info.layers]


class HiddenFiles(NamedTuple):
    """The files of an image that upper layers hide from its containers."""

    files: list[tuple[int, str, bytes]]
    """Number of the layer (0 is the bottom), path, and the first 64 MiB of the content."""
    entry_count: int
    """How many entries all layers of the image have together."""


def read_hidden_files(engine: Engine, info: ImageInfo) -> HiddenFiles | None:
    """Return the files of an image's layers that upper layers replace or remove.

    Returns None if the engine's store can't be read here. Raises EngineError if a layer is damaged.
    """
    layers = entries(engine, info)
    if layers is None:
        return None
    layer_by_diff_id = stored(Path(engine.facts.data_root), info.layers)
    files = []
    with reading(info.id):
        for number, path in find_hidden(layers):
            with open_file(layer_by_diff_id[info.layers[number]], path) as stream:
                files.append((number, path, stream.read(_MOST_READ)))
    return HiddenFiles(files=files, entry_count=sum(map(len, layers)))


def find_hidden(layers: Sequence[Sequence[LayerEntry]]) -> Iterator[tuple[int, str]]:
    """Yield each file, by its layer's number and its path, that an upper layer replaces or removes.

    A file that is replaced by one of equal content does not count.
    """
    visible = tree(layers)
    for number, layer in enumerate(layers):
        for entry in layer:
            if entry.kind != "file":
                continue
            final = visible.get(entry.path)
            if final is None or final.content != entry.content:
                yield number, entry.path


def tree(
    layers: Iterable[Sequence[LayerEntry]], below: Tree | None = None
) -> dict[str, LayerEntry]:
    """Return what a container sees of layers, by path; the lowest layer comes first.

    `below` is the result for the layers under these. Whiteouts and opaque folders are applied (OCI
    image specification, layer.md).
    """
    visible = dict(below or {})
    for layer in layers:
        new: dict[str, LayerEntry] = {}
        for entry in layer:
            folder, _, name = entry.path.rpartition("/")
            if name == _OPAQUE:
                _remove_inside(visible, folder)
            elif entry.kind == "whiteout":
                _remove(visible, f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
            else:
                former = visible.get(entry.path)
                if former and former.kind == "folder" and entry.kind != "folder":
                    _remove(visible, entry.path)
                # A hard link is another name of the file that it links to.
                target = new.get(entry.link, entry) if entry.kind == "hard link" else entry
                new[entry.path] = target._replace(path=entry.path)
        # Added last, because whiteouts remove only what is in the layers below.
        visible |= new
    return visible


def _remove(entries_by_path: dict[str, LayerEntry], path: str) -> None:
    """Remove the entry at a path and, if it is a folder or not known, all entries below it."""
    entry = entries_by_path.pop(path, None)
    if entry is None or entry.kind == "folder":
        _remove_inside(entries_by_path, path)


def _remove_inside(entries_by_path: dict[str, LayerEntry], folder: str) -> None:
    """Remove all entries below a folder, but not the folder."""
    for path in list(entries_by_path):
        if path.startswith(f"{folder}/"):
            del entries_by_path[path]


@lru_cache(maxsize=32)
def _stored_entries(layer: StoredLayer) -> Sequence[LayerEntry]:
    """Return the entries of a layer in the engine's store.

    The engine keeps the headers of each layer's tar, with a checksum of each file (tar-split). The
    result is cached, because an image and those derived from it share most layers.
    """
    *members, (end, _) = members_of(layer)
    headers = [header for header, _ in members]
    # A tar without its files' contents: each header follows the one before it.
    stream = io.BytesIO(b"".join([*headers, end, bytes(tarfile.BLOCKSIZE)]))
    entries = []
    with tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape") as tar:
        stream.seek(0)  # opening has read the first header already
        for _, file in members:
            content = f"{file.get('size', 0)} {file.get('payload') or ''}"
            entries.append(_entry(tarfile.TarInfo.fromtarfile(tar), content))
    return entries


_MOST_READ = 64 << 20
"""Bytes that are read of a hidden file."""
_KINDS = {tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link"}


def _entry(member: tarfile.TarInfo, content: str) -> LayerEntry:
    """Return the entry for a member of a layer's tar.

    `content` is a text that is equal for files of equal content.
    """
    path = _normal(member.name)
    kind = "file" if member.isreg() else _KINDS.get(member.type, "other")
    # A layer can't hold an ordinary file of such a name: it always means a deletion.
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
    """Return a path of a tar in its normal form, without `/` or `./` at the front."""
    return posixpath.normpath(f"/{name}").lstrip("/")
