"""Images for a while, what an engine holds of our runs, and an image as an engine tells of it."""

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

from images.engine import RUN_LABEL, Engine, ImageInfo
from images.engine.archive import ChunkReader


def containers(engine: Engine, label: str = RUN_LABEL) -> list[SimpleNamespace]:
    """Containers that bear a label, ended ones included."""
    found = engine.sdk.containers(all=True, filters={"label": label})
    return [
        SimpleNamespace(
            id=one["Id"], image=one["Image"], state=one["State"], labels=one["Labels"] or {}
        )
        for one in found
    ]


def volumes(engine: Engine, label: str = RUN_LABEL) -> list[str]:
    """Names of the volumes that bear a label."""
    return [one["Name"] for one in engine.sdk.volumes(filters={"label": label})["Volumes"] or ()]


@contextmanager
def built(
    engine: Engine,
    tag: str,
    dockerfile: str,
    files: Mapping[str, bytes | Path] | None = None,
    network: str | None = None,
) -> Iterator[str]:
    """An image, gone with the context."""
    engine.build({"Dockerfile": dockerfile.encode(), **(files or {})}, tag, network=network)
    try:
        yield tag
    finally:
        engine.remove(tag, force=True)


def image_info(**more: Any) -> ImageInfo:
    """Of an amd64 image; `more`: other values of its fields."""
    said: dict[str, Any] = {
        "id": "sha256:1",
        "tags": (),
        "digests": (),
        "size": 1,
        "created": "",
        "layers": (),
    }
    said |= {"architecture": "amd64", "labels": {}, "env": {}, "user": "1001", "workdir": ""}
    return ImageInfo(**{**said, "entrypoint": (), "command": ("bash",), **more})


def saved(engine: Engine, ref: str) -> Iterator[tuple[str, tarfile.TarInfo, bytes]]:
    """Layer, header and content of every file of every layer of an image, as the engine exports it."""
    for member, data in engine.exported(ref):
        head = data.read(512)
        if head[257:262] != b"ustar":
            continue  # its configuration and manifests
        whole = cast("IO[bytes]", ChunkReader(_chunks(head, data)))
        with tarfile.open(fileobj=whole, mode="r|", bufsize=1 << 20) as layer:
            for entry in layer:
                content = layer.extractfile(entry) if entry.isfile() else None
                yield member.name, entry, content.read() if content else b""


def _chunks(head: bytes, rest: IO[bytes]) -> Iterator[bytes]:
    yield head
    while chunk := rest.read(1 << 20):
        yield chunk
