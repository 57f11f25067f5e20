"""Reads the layers and the configuration of an image out of the engine.

They come from the engine's own store if that can be read here, else from an export.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from images.engine import classic_store, configuration, containerd_store
from images.engine.containerd_store import ContentStore, digest_of_member, read_blob
from images.engine.failures import EngineError
from images.engine.layer_tree import LayerEntry, find_hidden, find_wasted
from images.engine.layers import find_layers
from images.engine.runtime import ImageInfo
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
    """The tar's diff ID, or that of the configuration; empty for a layer that the export does not
    name."""
    chunks: Iterator[bytes]
    """The content, in chunks of any size. They must be read before the next part is asked for."""


def parts(engine: Engine, info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
    """Yield the configuration of an image, and the tars of some of its layers.

    `wanted` names the layers by the digests of their tars (diff IDs). Each part is yielded once,
    and must be read before the next one is asked for. If the engine's own store can be read, the
    configuration comes first, then the layers. Otherwise the parts come from an export
    (`docker save`), in its order. Exports of engines before version 25 do not name the layers, so
    all of them are yielded. Raises NoSuchImage and EngineError.
    """
    # Empty if the store can't be read here.
    layer_by_diff_id = find_layers(engine, info)
    config = find_configuration(engine, info) if layer_by_diff_id else None
    if config is None:
        if engine.facts.containerd_images:
            yield from _parts_of_layout(engine, info, wanted)
        else:
            yield from _parts_of_archive(engine, info, wanted)
        return

    yield ImagePart(digest=info.digest, chunks=iter([config]))
    # dict.fromkeys: an image may have a layer twice.
    for diff_id in dict.fromkeys(wanted):
        chunks = _readable(layer_by_diff_id[diff_id].tar(), info.digest)
        yield ImagePart(digest=diff_id, chunks=chunks)


def find_configuration(engine: Engine, info: ImageInfo) -> bytes | None:
    """Return the configuration of an image from the engine's store; None if it can't be read here.

    Raises EngineError for a damaged store.
    """
    if engine.facts.containerd_images:
        with layer_errors(info.digest):
            return ContentStore(engine.facts).read(info.digest)
    return classic_store.find_configuration(Path(engine.facts.data_root), info.digest)


def _parts_of_archive(
    engine: Engine, info: ImageInfo, wanted: Collection[str]
) -> Iterator[ImagePart]:
    """Yield an image's configuration and some of its layers, as an engine exports them.

    This is for engines with the classic image store. `wanted` are the diff IDs of the layers.
    Engines before version 25 do not say which layer is which: then all are yielded. Raises
    EngineError if the configuration is not in the export (`docker save`).
    """
    old_config_name = f"{info.digest.removeprefix('sha256:')}.json"
    has_config = False
    for member, stream in engine.exported(info.handle):
        # Engines from version 25 on name each file by its digest. Older ones have IMAGE_ID.json and
        # FOLDER/layer.tar, which do not tell which layer it is: `digest` is empty, and each layer
        # is yielded.
        digest = digest_of_member(member.name)
        if digest == info.digest or member.name == old_config_name:
            content = stream.read()
            has_config = True
            yield ImagePart(digest=info.digest, chunks=iter([content]))
        elif digest in wanted or member.name.endswith("/layer.tar"):
            chunks = _readable(read_all(stream), info.digest)
            yield ImagePart(digest=digest, chunks=chunks)
    if not has_config:
        raise no_configuration(info.digest)


def _parts_of_layout(
    engine: Engine, info: ImageInfo, wanted: Collection[str]
) -> Iterator[ImagePart]:
    """Yield an image's configuration and the wanted layers, in the order of the engine's export.

    This is for engines with containerd's image store: there, an export (`docker save`) is a tar
    with the image's compressed blobs. `wanted` are the diff IDs of layers, the digests of their
    uncompressed tars. Raises EngineError if the export lacks the configuration or a wanted layer.
    """
    # The export names each layer by the digest of its compressed blob. The manifest lists the blobs
    # in the order in which `info.layers` has the diff IDs.
    manifest = containerd_store.read_manifest(engine, engine.inspect_raw(info.handle))
    diff_id_of_blob: dict[str, str] = {}
    for diff_id, blob in zip(info.layers, manifest.layers, strict=True):
        if diff_id in wanted:
            diff_id_of_blob[blob.digest] = diff_id

    missing_digests = {info.digest, *diff_id_of_blob}
    for member, stream in engine.exported(info.handle):
        digest = digest_of_member(member.name)
        # Other members of the tar are layers that nobody wants, manifests and lists.
        if digest not in missing_digests:
            continue
        missing_digests.remove(digest)
        if digest == info.digest:
            content = stream.read()
            yield ImagePart(digest=digest, chunks=iter([content]))
        else:
            chunks = _readable(read_blob(read_all(stream)), info.digest)
            yield ImagePart(digest=diff_id_of_blob[digest], chunks=chunks)
    if missing_digests:
        raise containerd_store.lacks_layers(info.digest)


def no_configuration(digest: str) -> EngineError:
    """Return the error that an engine's export of an image does not have its configuration."""
    cause = "the engine exported an image without the configuration that has this digest"
    then = containerd_store.DAMAGED_HINT
    return EngineError(Problem(where=digest, cause=cause, then=then))


def _readable(chunks: Iterator[bytes], where: str) -> Iterator[bytes]:
    """Yield the chunks; raise EngineError, which names the image `where`, if reading them fails."""
    with layer_errors(where):
        yield from chunks


def entries(engine: Engine, info: ImageInfo) -> list[list[LayerEntry]] | None:
    """Return the entries (files, folders, links) of each layer of an image, the lowest first.

    Returns None if the engine's store can't be read here. Raises EngineError if a layer is damaged.
    """
    layer_by_diff_id = find_layers(engine, info)
    if not layer_by_diff_id:
        return None

    def list_entries(diff_id: str) -> list[LayerEntry]:
        return list(layer_by_diff_id[diff_id].entries())

    with layer_errors(info.digest), ThreadPoolExecutor() as pool:
        return list(pool.map(list_entries, info.layers))


class WastedBytes(NamedTuple):
    """Files that travel with an image for nothing, because of one build step."""

    step: str
    """The build step; empty if it is not known."""
    layer: int
    """The number of the step's layer, from 1 on."""
    how: str
    """`copied`: its layer has them again, unchanged but for owner, mode or time; or `removed`."""
    files: int
    bytes: int
    largest: str
    """The path of the largest of them."""


def find_wasted_bytes(engine: Engine, info: ImageInfo) -> list[WastedBytes] | None:
    """Return the bytes that are pulled with an image for nothing, by the build step at fault.

    A file that a later step removes is pulled all the same, and one that a later step copies to
    change its owner is pulled twice. The result has a row for each step and kind (`removed`,
    `copied`), in the order of the steps. None if the engine's store can't be read here. Raises
    EngineError if a layer is damaged.
    """
    listed = entries(engine, info)
    if listed is None:
        return None
    # The texts of the steps that made a layer, the first step first. If another builder wrote the
    # history, their number may differ, and nobody knows which step made which layer.
    steps = [step for step in engine.steps(info.handle) if configuration.has_layer(step)]
    if len(steps) != len(info.layers):
        steps = [""] * len(info.layers)

    wasted_files = list(find_wasted(listed))
    # Number of a layer -> path -> bytes. Only layers with such files are read, as this takes long.
    sizes: dict[int, dict[str, int]] = {}
    layer_by_diff_id = find_layers(engine, info)
    with layer_errors(info.digest):
        for number in sorted({file.layer for file in wasted_files}):
            sizes[number] = layer_by_diff_id[info.layers[number]].file_sizes()
    # Number of the upper layer, and what it does with the files -> path -> bytes.
    groups: dict[tuple[int, str], dict[str, int]] = {}
    for file in wasted_files:
        size = sizes[file.layer].get(file.path, 0)
        groups.setdefault((file.by, file.how), {})[file.path] = size

    wasted = []
    for (number, how), size_by_path in sorted(groups.items()):
        row = WastedBytes(
            step=configuration.normal_step(steps[number]),
            layer=number + 1,
            how=how,
            files=len(size_by_path),
            bytes=sum(size_by_path.values()),
            largest=max(size_by_path, key=lambda path: size_by_path[path]),
        )
        wasted.append(row)
    return wasted


class HiddenFiles(NamedTuple):
    """The files of an image that upper layers hide from its containers."""

    files: list[tuple[int, str, bytes]]
    """Number of the layer (0 is the bottom), path, and the first 64 MiB of the content."""
    entry_count: int
    """How many entries all layers of the image have together."""


def read_hidden_files(engine: Engine, info: ImageInfo) -> HiddenFiles | None:
    """Return the files of an image's layers that upper layers replace or remove.

    A container does not see them, but they are in the image. Each comes with its layer's number (0
    is the lowest), its path, and the first 64 MiB of its content. Returns None if the engine's
    store can't be read here. Raises EngineError if a layer is damaged.
    """
    listed = entries(engine, info)
    if listed is None:
        return None
    hidden_by_layer = group_by_layer(listed)  # number of the layer -> paths
    layer_by_diff_id = find_layers(engine, info)
    files = []
    with layer_errors(info.digest):
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
