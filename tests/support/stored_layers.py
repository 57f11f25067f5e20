"""Writes layers as the two kinds of engines' stores keep them, from a tar that is made here."""

import base64
import gzip
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

from images.engine.classic_store import ClassicLayer
from images.engine.containerd_store import ContainerdLayer
from images.host.hashing import oci_digest

TIME = 1704067200


def member(name: str, content: str = "", *, mode: int = 0o644, time: int = TIME) -> tarfile.TarInfo:
    """Describe a file, or a folder if the name ends in `/`. `content` stands in the PAX comment."""
    info = tarfile.TarInfo(name.rstrip("/"))
    info.mode, info.mtime = mode, time
    if name.endswith("/"):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    else:
        info.size = len(content.encode())
    return info


def tar_of(members: Sequence[tuple[tarfile.TarInfo, str]]) -> bytes:
    """Write a tar with these members and their contents, in this order."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content.encode()))
    return stream.getvalue()


def files(*texts: str) -> list[tuple[tarfile.TarInfo, str]]:
    """Describe members as texts: `a/` is a folder, `a/b=x` a file with the content `x`."""
    members = []
    for text in texts:
        name, _, content = text.partition("=")
        members.append((member(name, content), content))
    return members


def classic_layer(folder: Path, tar: bytes) -> ClassicLayer:
    """Keep a tar as the classic store does: the files in a folder, the rest as a tar-split."""
    rows: list[dict[str, object]] = []
    position = 0
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for info in archive:
            data = info.offset_data
            rows.append({"type": 2, "payload": base64.b64encode(tar[position:data]).decode()})
            name = f"{info.name}/" if info.isdir() else info.name
            row: dict[str, object] = {"type": 1, "name": name}
            path = folder / "diff" / info.name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = tar[data : data + info.size]
            if info.isdir():
                path.mkdir(exist_ok=True)
            elif info.isreg():
                path.write_bytes(content)
            if info.size:
                # The engine's own checksum is a CRC. Any will do that is equal for equal files.
                checksum = base64.b64encode(content[:6]).decode()
                row |= {"size": info.size, "payload": checksum}
            rows.append(row)
            position = data + info.size
    rows.append({"type": 2, "payload": base64.b64encode(tar[position:]).decode()})
    folder.mkdir(parents=True, exist_ok=True)
    split = folder / "tar-split.json.gz"
    split.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return ClassicLayer(diff_id=oci_digest(tar), split=split, files=folder / "diff")


def containerd_layer(folder: Path, tar: bytes, *, compressed: bool = True) -> ContainerdLayer:
    """Keep a tar as the containerd image store does: as a blob, compressed with gzip or not."""
    content = gzip.compress(tar, mtime=0) if compressed else tar
    blob = folder / oci_digest(content).removeprefix("sha256:")
    folder.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    return ContainerdLayer(diff_id=oci_digest(tar), blob=blob)
