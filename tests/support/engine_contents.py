"""Build images for a while, look at what an engine holds of our runs, and at images it exports."""

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

from images.engine import RUN_LABEL, Engine, ImageInfo
from images.engine.archive import ChunkReader
from images.engine.identity import ImageIdentity


def containers(engine: Engine, label: str = RUN_LABEL) -> list[SimpleNamespace]:
    """Return the containers that bear a label, also those that have ended."""
    rows = []
    for row in engine.sdk.containers(all=True, filters={"label": label}):
        rows.append(
            SimpleNamespace(
                id=row["Id"], image=row["Image"], state=row["State"], labels=row["Labels"] or {}
            )
        )
    return rows


def volumes(engine: Engine, label: str = RUN_LABEL) -> list[str]:
    """Return the names of the volumes that bear a label."""
    volumes = engine.sdk.volumes(filters={"label": label})["Volumes"] or ()
    return [volume["Name"] for volume in volumes]


@contextmanager
def built(
    engine: Engine,
    tag: str,
    dockerfile: str,
    files: Mapping[str, bytes | Path] | None = None,
    network: str | None = None,
) -> Iterator[str]:
    """Build an image, yield its tag, and remove it at the end of the context."""
    engine.build({"Dockerfile": dockerfile.encode(), **(files or {})}, tag, network=network)
    try:
        yield tag
    finally:
        engine.remove(tag, force=True)


def image_info(**more: Any) -> ImageInfo:
    """Return what an engine says of a small amd64 image. `more`: other values of its fields.

    `digest` in `more`: that of its configuration, which is also its handle in the classic store.
    """
    digest = more.pop("digest", "sha256:1")
    fields: dict[str, Any] = {
        "handle": digest,
        "identity": ImageIdentity(configuration=digest, platform="linux/amd64"),
        "tags": (),
        "digests": (),
        "size": 1,
        "created": "",
        "layers": (),
        "architecture": "amd64",
        "labels": {},
        "env": {},
        "user": "1001",
        "workdir": "",
        "entrypoint": (),
        "command": ("bash",),
    }
    return ImageInfo(**{**fields, **more})


def saved(engine: Engine, ref: str) -> Iterator[tuple[str, tarfile.TarInfo, bytes]]:
    """Yield layer, header and content of every file of every layer, as the engine exports them."""
    for member, data in engine.exported(ref):
        # Layers are tar files. The configuration and the manifests are not.
        head = data.read(512)
        if head[257:262] != b"ustar":
            continue
        whole = cast("IO[bytes]", ChunkReader(_chunks(head, data)))
        with tarfile.open(fileobj=whole, mode="r|", bufsize=1 << 20) as layer:
            for entry in layer:
                content = layer.extractfile(entry) if entry.isfile() else None
                yield member.name, entry, content.read() if content else b""


def _chunks(head: bytes, rest: IO[bytes]) -> Iterator[bytes]:
    """Yield what was read of a stream, then the rest of it in pieces."""
    yield head
    while chunk := rest.read(1 << 20):
        yield chunk
