"""The engine's responses: its JSON as frozen dataclasses, its errors as EngineError."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, cast

import docker.errors
import requests

from images.engine.archive import ChunkReader
from images.engine.docker_types import ImageConfig, ImageResponse, RootFs
from images.engine.failures import EngineError, EngineErrorKind, NoSuchImage, engine_error_kind
from images.errors import Problem, UserError

_USED_BY = re.compile(r"container ([0-9a-f]{12,}) is using its referenced image")


def root_cause(error: BaseException) -> str:
    """The innermost message: the SDK and requests wrap an OSError four times over."""
    error = _root(error)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__


def _root(error: BaseException) -> BaseException:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """An image as the engine holds it. `size` in bytes, `layers` are diff IDs, bottom first."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    """`name@sha256:...` for each registry it came from or went to."""
    size: int
    created: str
    architecture: str
    layers: tuple[str, ...]
    labels: Mapping[str, str]
    env: Mapping[str, str]
    user: str
    workdir: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """One line of an image's history, newest first. `size` in bytes."""

    created_by: str
    size: int
    comment: str


@dataclass(frozen=True, kw_only=True)
class CacheRecord:
    """Something that the engine keeps of builds. `size` in bytes."""

    id: str
    parents: tuple[str, ...]
    made_by: str
    """In BuildKit's words: `mount / from exec /bin/sh -c ...`."""
    size: int


@dataclass(frozen=True, kw_only=True)
class ContainerInfo:
    """A container in a list."""

    id: str
    name: str
    image: str
    state: str
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SavedFile:
    """One file of an exported image: in a layer, or (`layer` empty) its configuration and manifests."""

    layer: str
    member: tarfile.TarInfo
    data: IO[bytes]
    """Readable until the next file is asked for; empty for links and folders."""


@contextmanager
def asking(where: str, *, image: str | None = None, missing: str | None = None, then: str = "") -> Iterator[None]:
    """Turns what the SDK and its transport raise into EngineError; a missing `image` into NoSuchImage."""
    try:
        yield
    except docker.errors.APIError as error:
        not_found = isinstance(error, docker.errors.NotFound)
        if not_found and missing is not None:
            raise
        said = str(error.explanation if not_found else error.explanation or error)
        raise _refused(where, said, engine_error_kind(said, not_found=not_found), image, then) from None
    except (requests.exceptions.RequestException, docker.errors.DockerException, tarfile.ReadError, OSError) as error:
        raise _broken(where, error) from None


def _refused(where: str, said: str, kind: EngineErrorKind, image: str | None, then: str) -> EngineError:
    if image is not None and kind is EngineErrorKind.NO_SUCH_IMAGE:
        return NoSuchImage(image)
    if image is not None and kind is EngineErrorKind.BAD_REFERENCE:
        then = "write NAME, NAME:TAG, NAME@sha256:... or an image ID; `docker images` lists what is there"
        return EngineError(Problem(where=where, cause="is no name of an image", then=then), kind, code=2)
    if not then and (used := _USED_BY.search(said)):
        then = f"`docker rm --force {used[1]}` removes that container, if nobody needs it; then run the command again"
    return EngineError(Problem(where=where, cause=f"the engine says: {said}", then=then), kind)


def _broken(where: str, error: BaseException) -> EngineError:
    root = _root(error)
    if isinstance(root, OSError) and root.filename:  # a file of ours, read while the request was sent
        problem = Problem(where=where, cause=f"{root.strerror}: {root.filename}")
        return EngineError(problem, EngineErrorKind.LOCAL_FILE)
    cause = f"the connection to the engine broke: {root_cause(error)}"
    then = "is the engine still running (`docker info`), and its disk not full?"
    return EngineError(Problem(where=where, cause=cause, then=then), EngineErrorKind.CONNECTION)


def image_info(data: ImageResponse) -> ImageInfo:
    config: ImageConfig = data.get("Config") or {}
    layers: RootFs = data.get("RootFS") or {}
    return ImageInfo(
        id=data["Id"],
        tags=tuple(data.get("RepoTags") or ()),
        digests=tuple(data.get("RepoDigests") or ()),
        size=data["Size"],
        created=data.get("Created") or "",
        architecture=data.get("Architecture") or "",
        layers=tuple(layers.get("Layers") or ()),
        labels=config.get("Labels") or {},
        env={name: value for name, _, value in (line.partition("=") for line in config.get("Env") or ())},
        user=config.get("User") or "",
        workdir=config.get("WorkingDir") or "",
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
    )


def saved_files(member: tarfile.TarInfo, data: IO[bytes]) -> Iterator[SavedFile]:
    """A blob of an exported image: a layer (a tar, compressed or not) file by file, anything else as it is."""
    head = data.read(512)
    whole = cast("IO[bytes]", ChunkReader(_rejoined(head, data)))
    is_tar = head[257:262] == b"ustar"
    is_gzip = head[:2] == b"\x1f\x8b"
    if head[:4] == b"\x28\xb5\x2f\xfd":
        raise UserError(Problem(where=member.name, cause="a layer compressed with zstd can't be read here"), code=1)
    if not (is_tar or is_gzip):
        yield SavedFile(layer="", member=member, data=whole)
        return
    with tarfile.open(fileobj=whole, mode="r|gz" if is_gzip else "r|", bufsize=1 << 20) as layer:
        for entry in layer:
            content = layer.extractfile(entry) if entry.isfile() else None
            yield SavedFile(layer=member.name, member=entry, data=content or cast("IO[bytes]", ChunkReader(iter(()))))


def _rejoined(head: bytes, rest: IO[bytes]) -> Iterator[bytes]:
    yield head
    while chunk := rest.read(1 << 20):
        yield chunk
