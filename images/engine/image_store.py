"""Images that the engine holds: inspect, name, remove, list, export, load."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from docker.utils import parse_repository_tag

from images.engine import layer_store
from images.engine.archive import ChunkReader, Files
from images.engine.docker_api import DockerApi
from images.engine.docker_types import GraphDriver, ImageResponse
from images.engine.facts import CLASSIC_STORE
from images.engine.failures import EngineError, EngineErrorKind, NoSuchImage
from images.engine.responses import CacheRecord, HistoryEntry, ImageInfo, asking, image_info
from images.errors import Problem, UserError


def inspect(api: DockerApi, ref: str) -> ImageInfo:
    """What the engine knows of an image. Raises NoSuchImage."""
    with asking(ref, image=ref):
        return image_info(api.sdk.inspect_image(ref))


def find(api: DockerApi, ref: str) -> ImageInfo | None:
    """The image, or None where the engine lacks it."""
    try:
        return inspect(api, ref)
    except NoSuchImage:
        return None


def history(api: DockerApi, ref: str) -> tuple[HistoryEntry, ...]:
    """How the image came to be, newest step first. Raises NoSuchImage."""
    with asking(ref, image=ref):
        entries = api.sdk.history(ref)
    return tuple(
        HistoryEntry(created_by=entry["CreatedBy"], size=entry["Size"], comment=entry["Comment"]) for entry in entries
    )


def tag(api: DockerApi, source: str, name: str) -> None:
    """Give an image one more name, taking it from whatever bore it. Raises NoSuchImage."""
    repository, tag_ = parse_repository_tag(name)
    with asking(source, image=source):
        api.sdk.tag(source, repository, tag_ or "latest", force=True)


def remove(api: DockerApi, ref: str, *, force: bool = False) -> None:
    """Take a name away, and the image with its last one. One that isn't there is no error."""
    try:
        with asking(ref, image=ref):
            api.sdk.remove_image(ref, force=force)
    except NoSuchImage:
        return


def labelled(api: DockerApi, label: str) -> tuple[ImageInfo, ...]:
    """Images that bear a label (`key` or `key=value`)."""
    with asking("list of images"):
        found = api.sdk.images(filters={"label": label})
    return tuple(info for image in found if (info := find(api, image["Id"])))


def exported(api: DockerApi, ref: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Each blob of an exported image, readable until the next is asked for. Raises NoSuchImage."""
    with asking(ref, image=ref):
        stream = cast("IO[bytes]", ChunkReader(iter(api.sdk.get_image(ref))))
        with tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as outer:
            for member in outer:
                if data := outer.extractfile(member) if member.isfile() else None:
                    yield member, data


def layer_folders(api: DockerApi, ref: str) -> tuple[Path, ...]:
    """The overlay2 folders of an image's layers, bottom first; nothing where they can't be read here."""
    with asking(ref, image=ref):
        found: ImageResponse = api.sdk.inspect_image(ref)
    driver: GraphDriver = found.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    if driver.get("Name") != "overlay2" or "UpperDir" not in data:
        return ()
    lower = [folder for folder in data.get("LowerDir", "").split(":") if folder]
    folders = tuple(Path(folder) for folder in (*reversed(lower), data["UpperDir"]))
    readable = all(os.access(folder, os.R_OK) for folder in folders)
    return folders if readable and len(folders) == len(found["RootFS"]["Layers"] or ()) else ()


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


def parts(api: DockerApi, info: ImageInfo, wanted: Collection[str], store: Path | None) -> Iterator[ImagePart]:
    """The configuration of an image, and the wanted layers (by diff ID), each once.

    From `store`, the engine's own folder, where it can be read: the largest layer first. Else from an export, in its
    order; engines before 25 do not say there which layer is which, and all of them come. Raises NoSuchImage,
    EngineError: the engine names images by something else than their configuration (the containerd image store).
    """
    stored = layer_store.layers(store, info.layers) if store else {}
    config = layer_store.config(store, info.id) if store else None
    if stored and config is not None:
        layers = [stored[diff_id] for diff_id in dict.fromkeys(wanted)]
        following = sum(layer.size for layer in layers)
        yield ImagePart(digest=info.id, size=len(config), chunks=iter([config]), following=following)
        for layer in sorted(layers, key=lambda one: one.size, reverse=True):
            following -= layer.size
            yield ImagePart(
                digest=layer.diff_id,
                size=layer.size,
                chunks=_readable(layer_store.tar(layer), info.id),
                following=following,
            )
    else:
        yield from _exported_parts(api, info, wanted)


def _exported_parts(api: DockerApi, info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
    digits, has_config = info.id.removeprefix("sha256:"), False
    for member, data in exported(api, info.id):
        digest = f"sha256:{member.name.removeprefix('blobs/sha256/')}" if member.name.startswith("blobs/") else ""
        if digest == info.id or member.name == f"{digits}.json":
            content = data.read()
            has_config = b'"rootfs"' in content
            yield ImagePart(digest=info.id, size=len(content), chunks=iter([content]))
        elif digest in wanted or member.name.endswith("/layer.tar"):
            yield ImagePart(digest=digest, size=member.size, chunks=_readable(_chunks(data), info.id))
    if not has_config:
        raise no_configuration(info.id)


def no_configuration(image_id: str) -> EngineError:
    """What a verdict names is the digest of a configuration: with other IDs nothing can be published."""
    then = f"{CLASSIC_STORE}; then build again"
    problem = Problem(where=image_id, cause="the engine's image ID is not the digest of a configuration", then=then)
    return EngineError(problem, EngineErrorKind.OTHER)


def _chunks(data: IO[bytes]) -> Iterator[bytes]:
    while chunk := data.read(1 << 20):
        yield chunk


def _readable(chunks: Iterator[bytes], where: str) -> Iterator[bytes]:
    """What can't be read of a layer, as an error of the engine."""
    with asking(where):
        try:
            yield from chunks
        except (ValueError, LookupError) as error:
            then = "is its disk whole? build the image anew, or take another engine with --engine"
            problem = Problem(where=where, cause=f"a layer can't be read: {error}", then=then)
            raise EngineError(problem, EngineErrorKind.LOCAL_FILE) from None


def load(api: DockerApi, files: Files, name: str) -> None:
    """Load what `docker save` writes (manifest.json, its config, layers). Raises UserError."""
    with asking(name), api.load(files) as messages:
        for message in messages:
            if "error" in message:
                raise UserError(Problem(where=name, cause=f"can't be loaded: {message['error']}"), code=1)


def build_cache(api: DockerApi) -> tuple[CacheRecord, ...]:
    """What the engine keeps of builds: snapshots of steps, and cache mounts."""
    with asking("build cache"):
        found = api.sdk.df()["BuildCache"] or ()
    return tuple(
        CacheRecord(
            id=one["ID"],
            # Newer engines say `Parents`; a step's snapshot has one.
            parents=tuple(one.get("Parents") or ([one["Parent"]] if one.get("Parent") else ())),
            made_by=one.get("Description") or "",
            size=one["Size"],
        )
        for one in found
    )


def forget(api: DockerApi, record: CacheRecord) -> None:
    """Remove a record of the build cache. One that something else still needs stays."""
    with asking("build cache"):
        api.sdk.prune_builds(filters={"id": [record.id]}, all=True)
