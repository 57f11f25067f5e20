"""Packs files into tar streams for the engine, and makes streams of its answers readable.

The same files always give the same bytes. Build contexts are sent like this, and files that are
copied into containers.
"""

import errno
import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

Files = Mapping[str, bytes | Path]
"""Path inside an archive -> its content, or the file on disk that has the content."""

_CHUNK = 1 << 20


def pack(files: Files) -> Iterator[bytes]:
    """Yield the tar of these files in chunks of about 1 MiB.

    `files`: path in the tar -> its content, or the file on disk to read when its turn comes.
    Members are sorted, belong to root and are dated 1970. Folders have mode 0755, and so have
    programs: what is executable on disk, and bytes that are a script (`#!`) or an ELF file. All
    others have 0644. Raises OSError, which names the file, if one can't be read or changes
    its size meanwhile.
    """
    # Small files are sent together: there are thousands, and a chunk of each would be slow.
    chunk = bytearray()
    contents = _with_parent_folders(files)
    for name in sorted(contents):
        for part in _member(name, contents[name]):
            chunk += part
            if len(chunk) >= _CHUNK:
                yield bytes(chunk)
                chunk.clear()
    # A tar ends with two blocks of zeros.
    end_of_archive = bytes(tarfile.BLOCKSIZE * 2)
    yield bytes(chunk) + end_of_archive


def _with_parent_folders(files: Files) -> dict[str, bytes | Path | None]:
    """Return the files by path, and also each folder above them, with None as its content.

    Paths lose what is superfluous: `a//b/` becomes `a/b`. Without an entry for a folder, the engine
    makes one that only root can read.
    """
    contents: dict[str, bytes | Path | None] = {}
    for name, content in files.items():
        path = PurePosixPath(name)
        contents[str(path)] = content
        # The last parent of a relative path is `.`, of an absolute one `/`.
        for folder in list(path.parents)[:-1]:
            contents.setdefault(str(folder), None)
    return contents


def _member(name: str, content: bytes | Path | None) -> Iterator[bytes]:
    """Yield the bytes of one member of a tar: its header, its content, and zeros up to a block.

    `content`: that of a file, or the file on disk that has it; None makes `name` a folder. The
    format is GNU's: BuildKit takes an archive in PAX format for a Dockerfile. Raises OSError if a
    file can't be read, or changes its size meanwhile; it names the file.
    """
    header = tarfile.TarInfo(name)
    if content is None:
        header.type = tarfile.DIRTYPE
        header.mode = 0o755
        yield header.tobuf(format=tarfile.GNU_FORMAT)
        return

    stream: IO[bytes]
    if isinstance(content, bytes):
        header.size = len(content)
        # A script or a program file; bytes have no mode that would tell.
        is_program = content.startswith((b"#!", b"\x7fELF"))
        stream = io.BytesIO(content)
    else:
        status = content.stat()
        header.size = status.st_size
        is_program = bool(status.st_mode & 0o111)
        stream = content.open("rb")
    header.mode = 0o755 if is_program else 0o644

    with stream:
        yield header.tobuf(format=tarfile.GNU_FORMAT)
        while chunk := _read_chunk(stream, content):
            yield chunk
        if stream.tell() != header.size:
            cause = "it changed its size while it was read"
            raise OSError(errno.ESTALE, cause, str(content))
    yield bytes(-header.size % tarfile.BLOCKSIZE)


def _read_chunk(stream: IO[bytes], content: bytes | Path) -> bytes:
    """Return the next chunk of a member's content; empty at its end.

    An OSError gets the file's name: without one, it would look like an error of the connection to
    the engine.
    """
    try:
        return stream.read(_CHUNK)
    except OSError as error:
        error.filename = str(content)
        raise


class ChunkReader(io.RawIOBase):
    """A readable file over chunks of bytes that arrive one by one, such as an HTTP answer.

    It can't seek, so tarfile reads it in its stream modes (`r|`).
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._unread = b""  # what is left of the last chunk

    def readable(self) -> bool:
        """Return True: this is what makes the file one that can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed's buffer type is private
        """Fill the buffer with at most one chunk. Return the number of bytes; 0 at the end."""
        while not self._unread:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._unread = chunk
        count = min(len(buffer), len(self._unread))
        buffer[:count] = self._unread[:count]
        self._unread = self._unread[count:]
        return count
