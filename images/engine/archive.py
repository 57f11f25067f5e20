"""Files into a tar stream, byte for byte the same for the same files: build contexts and what
goes into containers.
"""

import io
import tarfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

Files = Mapping[str, bytes | Path]
"""Path inside the archive to its content; a file on disk is read when its turn comes."""

_CHUNK = 1 << 20


def pack(files: Files) -> Iterator[bytes]:
    """The tar of `files` in chunks, never held in memory as a whole.

    Sorted, dated 1970, owned by root; 0755 for folders, for bytes that are a script (`#!`) or a
    program (ELF), and for what is executable on disk, else 0644. GNU format: BuildKit takes a PAX
    archive for a Dockerfile. Parent folders are written too, because the engine makes missing ones
    readable for root alone. Raises OSError when a file can't be read or changes its size meanwhile.
    """
    content: dict[str, bytes | Path | None] = {
        str(PurePosixPath(name)): files[name] for name in files
    }
    for name in list(content):
        while name := name.rpartition("/")[0]:
            content.setdefault(name)
    gathered = bytearray()  # of thousands of small files, each chunk would be sent by itself
    for name in sorted(content):
        for part in _member(name, content[name]):
            gathered += part
            if len(gathered) >= _CHUNK:
                yield bytes(gathered)
                gathered.clear()
    yield bytes(gathered) + bytes(tarfile.BLOCKSIZE * 2)


def _member(name: str, content: bytes | Path | None) -> Iterator[bytes]:
    """Yield header, content and padding of one file or (None) folder."""
    info = tarfile.TarInfo(name)
    if content is None:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        yield info.tobuf(format=tarfile.GNU_FORMAT)
        return

    if isinstance(content, bytes):
        info.size = len(content)
        is_program = content.startswith((b"#!", b"\x7fELF"))
        stream: IO[bytes] = io.BytesIO(content)
    else:
        status = content.stat()
        info.size = status.st_size
        is_program = bool(status.st_mode & 0o111)
        stream = content.open("rb")
    info.mode = 0o755 if is_program else 0o644

    with stream:
        yield info.tobuf(format=tarfile.GNU_FORMAT)
        yield from iter(partial(stream.read, _CHUNK), b"")
        if stream.tell() != info.size:
            raise OSError(f"{name} changed its size while it was read")
    yield bytes(-info.size % tarfile.BLOCKSIZE)


class ChunkReader(io.RawIOBase):
    """A readable stream over chunks that arrive one by one (an HTTP answer), for tarfile's
    stream modes.
    """

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
