"""Reads the layers and the configuration of an image out of the engine.

They come from the engine's own store if that can be read here, else from an export.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from images.engine import classic_store
from images.engine.failures import EngineError
from images.engine.layer_tree import LayerEntry, find_hidden
from images.engine.layers import find_layers
from images.engine.runtime import CLASSIC_STORE, ImageInfo
from images.engine.stored_layer import layer_errors, read_all
from images.errors import Problem

if TYPE_CHECKING:
    from images.engine.client import Engine

_MOST_READ = 64 << 20
"""Bytes that are read of a hidden file."""


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
    layer_by_diff_id = find_layers(engine, info)
    config = None
    if layer_by_diff_id:
        config = classic_store.find_configuration(Path(engine.facts.data_root), info.id)
    if config is None:
        yield from _exported_parts(engine, info, wanted)
        return

    # dict.fromkeys: an image may have a layer twice.
    layers = [layer_by_diff_id[diff_id] for diff_id in dict.fromkeys(wanted)]
    remaining = sum(layer.size for layer in layers)
    yield ImagePart(digest=info.id, size=len(config), chunks=iter([config]), following=remaining)
    for layer in sorted(layers, key=lambda layer: layer.size, reverse=True):
        remaining -= layer.size
        chunks = _readable(layer.tar(), info.id)
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
            chunks = _readable(read_all(stream), info.id)
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
    with layer_errors(where):
        yield from chunks


def entries(engine: Engine, info: ImageInfo) -> list[list[LayerEntry]] | None:
    """Return the entries of each layer of an image, the bottom layer first.

    Returns None if the engine's store can't be read here. Raises EngineError if a layer is damaged.
    """
    layer_by_diff_id = find_layers(engine, info)
    if not layer_by_diff_id:
        return None
    with layer_errors(info.id):
        return [list(layer_by_diff_id[diff_id].entries()) for diff_id in info.layers]


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
    listed = entries(engine, info)
    if listed is None:
        return None
    hidden_by_layer = group_by_layer(listed)
    layer_by_diff_id = find_layers(engine, info)
    files = []
    with layer_errors(info.id):
        for number, paths in hidden_by_layer.items():
            layer = layer_by_diff_id[info.layers[number]]
            for path, content in layer.read_files(paths, _MOST_READ):
                files.append((number, path, content))
    return HiddenFiles(files=files, entry_count=sum(map(len, listed)))


def group_by_layer(layers: Sequence[Sequence[LayerEntry]]) -> dict[int, list[str]]:
    """Return the paths that upper layers hide, by the number of the layer that has the file."""
    paths_by_layer: dict[int, list[str]] = {}
    for number, path in find_hidden(layers):
        paths_by_layer.setdefault(number, []).append(path)
    return paths_by_layer
