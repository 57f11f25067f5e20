"""Files into a tar stream, byte for byte the same for the same files: build contexts and what goes into containers."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

Files = Mapping[str, bytes | Path]
"""Path inside the archive to its content; a Path is read from disk when its turn comes, a folder with all it holds."""

_CHUNK = 1 << 20


def pack(files: Files, *, uid: int = 0, gid: int = 0) -> Iterator[bytes]:
    """The tar of `files` in chunks, never held in memory as a whole.

    Sorted, dated 1970, owned by `uid:gid`; 0755 for folders, for bytes that are a script (`#!`) or a program (ELF), and
    for what is executable on disk, else 0644.
    GNU format: BuildKit takes a PAX archive for a Dockerfile. Parent folders are written too, because the engine makes
    missing ones readable for root alone. Raises OSError when a file can't be read or changes its size meanwhile.
    """
    leaves = dict(_leaves(files))
    folders = {str(parent) for path in leaves for parent in PurePosixPath(path).parents if str(parent) != "."}
    for path in sorted(leaves.keys() | folders):
        if path in leaves:
            yield from _entry(path, leaves[path], uid, gid)
        else:
            yield _header(path, tarfile.DIRTYPE, mode=0o755, uid=uid, gid=gid)
    yield bytes(tarfile.BLOCKSIZE * 2)


def _leaves(files: Files) -> Iterator[tuple[str, bytes | Path]]:
    for path, content in files.items():
        if isinstance(content, Path) and content.is_dir() and not content.is_symlink():
            for child in content.rglob("*"):
                if child.is_symlink() or child.is_file():
                    yield str(PurePosixPath(path) / child.relative_to(content).as_posix()), child
        else:
            yield str(PurePosixPath(path)), content


def _entry(path: str, content: bytes | Path, uid: int, gid: int) -> Iterator[bytes]:
    if isinstance(content, bytes):
        mode = 0o755 if content.startswith((b"#!", b"\x7fELF")) else 0o644
        yield _header(path, tarfile.REGTYPE, mode=mode, uid=uid, gid=gid, size=len(content))
        yield from _padded(io.BytesIO(content), len(content), path)
    elif content.is_symlink():
        yield _header(path, tarfile.SYMTYPE, mode=0o777, uid=uid, gid=gid, target=str(content.readlink()))
    else:
        with content.open("rb") as stream:
            status = content.stat()
            mode = 0o755 if status.st_mode & 0o111 else 0o644
            yield _header(path, tarfile.REGTYPE, mode=mode, uid=uid, gid=gid, size=status.st_size)
            yield from _padded(stream, status.st_size, path)


def _header(path: str, kind: bytes, *, mode: int, uid: int, gid: int, size: int = 0, target: str = "") -> bytes:
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.uid, info.gid, info.size, info.linkname = kind, mode, uid, gid, size, target
    return info.tobuf(format=tarfile.GNU_FORMAT)


def _padded(stream: IO[bytes], size: int, path: str) -> Iterator[bytes]:
    left = size
    while left:
        chunk = stream.read(min(_CHUNK, left))
        if not chunk:
            raise OSError(f"{path} became shorter while it was read")
        left -= len(chunk)
        yield chunk
    yield bytes(-size % tarfile.BLOCKSIZE)


class ChunkReader(io.RawIOBase):
    """A readable stream over chunks that arrive one by one (an HTTP answer), for tarfile's stream modes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed's buffer type is private
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
