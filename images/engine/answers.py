"""What the engine answers, in our words: its errors as UserError, its JSON as frozen dataclasses."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

import docker.errors
import requests

from images.engine.archive import ChunkReader
from images.errors import Problem, UserError

UNREACHABLE = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)


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


class NoSuchImage(UserError):  # noqa: N818  # said as an event
    """The engine does not have this image."""

    def __init__(self, ref: str) -> None:
        super().__init__(
            Problem(
                where=ref, cause="the engine has no such image", then="build it (`nox -s build -- NAME`) or pull it"
            )
        )


@contextmanager
def asking(where: str, *, image: str | None = None, missing: str | None = None, then: str = "") -> Iterator[None]:
    """Turns what the SDK and its transport raise into UserError; a missing `image` into NoSuchImage."""
    try:
        yield
    except docker.errors.NotFound as error:
        if missing is not None:
            raise
        if image is not None and "image" in str(error.explanation).lower():
            raise NoSuchImage(image) from None
        raise UserError(
            Problem(where=where, cause=f"the engine says: {error.explanation}", then=then), code=1
        ) from None
    except docker.errors.APIError as error:
        if image is not None and "invalid reference" in str(error.explanation).lower():
            then = "write NAME, NAME:TAG, NAME@sha256:... or an image ID; `docker images` lists what is there"
            raise UserError(Problem(where=where, cause="is no name of an image", then=then)) from None
        raise UserError(
            Problem(where=where, cause=f"the engine says: {error.explanation or error}", then=then), code=1
        ) from None
    except (requests.exceptions.RequestException, docker.errors.DockerException, tarfile.ReadError, OSError) as error:
        root = _root(error)
        if isinstance(root, OSError) and root.filename:  # a file of ours, read while the request was sent
            raise UserError(Problem(where=where, cause=f"{root.strerror}: {root.filename}"), code=1) from None
        raise UserError(
            Problem(
                where=where,
                cause=f"the connection to the engine broke: {root_cause(error)}",
                then="is the engine still running (`docker info`), and its disk not full?",
            ),
            code=1,
        ) from None


def image_info(data: Mapping[str, Any]) -> ImageInfo:
    config = data.get("Config") or {}
    return ImageInfo(
        id=data["Id"],
        tags=tuple(data.get("RepoTags") or ()),
        digests=tuple(data.get("RepoDigests") or ()),
        size=data["Size"],
        created=data.get("Created") or "",
        architecture=data.get("Architecture") or "",
        layers=tuple((data.get("RootFS") or {}).get("Layers") or ()),
        labels=config.get("Labels") or {},
        env=dict(line.partition("=")[::2] for line in config.get("Env") or ()),
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
