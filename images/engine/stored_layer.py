"""Describes a layer in an engine's store: the tar that it came as, whatever the store makes of it.

classic_store.py and containerd_store.py have the layers of the two kinds of stores. Whoever reads a
layer whole checks its digest, because a store may be damaged.
"""

from __future__ import annotations

import errno
import gzip
import os
import tarfile
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, NamedTuple, cast

import docker.errors
import requests
import urllib3.exceptions
from zlib_ng import zlib_ng

from images.engine.containers import engine_errors
from images.engine.failures import EngineError
from images.engine.layer_tree import LayerEntry, normal_path, parse_headers
from images.errors import Problem

CHUNK = 1 << 20
"""Bytes that are read at once."""
_ZLIB_NG_ERROR = cast("type[Exception]", zlib_ng.error)
_DAMAGE = (
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    zlib.error,
    _ZLIB_NG_ERROR,
    tarfile.TarError,
    gzip.BadGzipFile,
)
"""What reading a damaged layer or manifest raises, besides other kinds of OSError."""


_CONNECTION_ERRORS = (
    requests.exceptions.RequestException,
    docker.errors.DockerException,
    urllib3.exceptions.HTTPError,
    ConnectionError,
    TimeoutError,
)
"""Errors of the connection to the engine, some of which are kinds of OSError."""
_NEXT_STEP_OF_DAMAGE = (
    "remove the image (`docker image rm`), then build or pull it again; if its layer can't be read "
    "then either, use another engine (--engine URL): this one's disk may be damaged"
)


class UnreadableLayersError(Exception):
    """The layers of an image can't be read in the engine's store.

    Its text says why, and where they can. This is no damage: an export may have them, or root may
    read them.
    """


class UnknownCompressionError(ValueError):
    """A layer is compressed in a way that can't be read here."""


class Member(NamedTuple):
    """A file, folder or link in the tar of a layer."""

    header: bytes
    """All bytes of the tar that describe it, up to its content."""
    path: bytes
    """Has no slash in front. That of a folder may end with one."""
    size: int
    """Bytes of its content."""
    content: str
    """A text that is equal for members of equal content, in layers of the same store."""
    offset: int = 0
    """Where its content begins in the tar, if the store keeps the tar whole."""


class LayerTar(NamedTuple):
    """The members of a layer's tar, in its order."""

    members: list[Member]
    end: bytes
    """What stands behind the last member."""


ReadContent = Callable[[Member], Iterator[bytes]]
"""Yields the content of a member in chunks."""


@dataclass(frozen=True, kw_only=True)
class StoredLayer(ABC):
    """A layer in an engine's store.

    Its methods raise many kinds of errors if the store is damaged; within `layer_errors`, they
    become EngineError.
    """

    diff_id: str
    """The digest of its tar, as the engine has it."""

    @abstractmethod
    def read_tar(self) -> LayerTar:
        """Return the members of its tar."""

    @abstractmethod
    def contents(self) -> AbstractContextManager[ReadContent]:
        """Return a context in which the contents of members can be read in any order."""

    @abstractmethod
    def tar(self) -> Iterator[bytes]:
        """Yield its tar as it came, in chunks."""

    @abstractmethod
    def read_files(self, paths: Collection[str], most: int) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of these files of the layer; at most `most` bytes of each."""

    @abstractmethod
    def hash_contents(self) -> dict[str, str]:
        """Return the SHA-256 of the files' contents: `Member.content` -> 64 hexadecimal digits."""

    def entries(self) -> Sequence[LayerEntry]:
        """Return its files, folders and links, in the order of its tar."""
        tar = self.read_tar()
        headers = [member.header for member in tar.members]
        contents = [member.content for member in tar.members]
        return parse_headers(headers, contents, tar.end)

    def file_sizes(self) -> dict[str, int]:
        """Return the size of each of its files that is not empty: path -> bytes."""
        sizes = {}
        for member in self.read_tar().members:
            if member.size:
                sizes[normal_path(os.fsdecode(member.path))] = member.size
        return sizes

    def tar_of(self, tar: LayerTar) -> Iterator[bytes]:
        """Yield a tar with these members, whose contents are taken from the layer, in chunks."""
        with self.contents() as read_content:
            for member in tar.members:
                yield member.header
                if member.size:
                    yield from read_content(member)
                    yield bytes(padding(member.size))
        yield tar.end


def read_all(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield what is left of a stream, in chunks."""
    yield from iter(partial(stream.read, CHUNK), b"")


def padding(size: int) -> int:
    """Return how many zeros follow a content of `size` bytes in a tar, up to a whole block."""
    return -size % tarfile.BLOCKSIZE


@contextmanager
def layer_errors(where: str) -> Iterator[None]:
    """Turn errors of reading an image's layers into EngineError, within a `with` block.

    Those are errors of the engine and of files, a compression that we can't read, and all that
    parsing a damaged layer or manifest raises. Errors of files are about the engine's store, and
    about the temporary copies of layers. `where` names the image, for the message.
    """
    with engine_errors(where):
        try:
            yield
        except UnknownCompressionError as error:
            then = (
                "build or pull it on an engine with the classic store, which unpacks all layers; "
                "or build it on a base whose layers are compressed with gzip"
            )
            raise EngineError(Problem(where=where, cause=str(error), then=then)) from None
        except _DAMAGE as error:
            raise _unreadable_layer(where, str(error), _NEXT_STEP_OF_DAMAGE) from None
        except _CONNECTION_ERRORS:
            # requests' errors are OSErrors, too: engine_errors speaks of them.
            raise
        except OSError as error:
            raise _file_error(error, where) from None


def _file_error(error: OSError, where: str) -> EngineError:
    """Return our error for a file of the engine's store, or a temporary one, that failed.

    `where` names the image whose layers were read.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        # Nothing is written here but unpacked copies of layers.
        folder = tempfile.gettempdir()
        cause = f"a layer can't be unpacked in {folder}: {error.strerror}"
        then = f"free space in {folder}, or let TMPDIR name a folder on a larger disk"
        return EngineError(Problem(where=where, cause=cause, then=then))

    reason = error.strerror or str(error)
    if error.filename:
        reason = f"{os.fsdecode(error.filename)}: {reason}"
    if isinstance(error, PermissionError):
        return _unreadable_layer(where, reason, "give the command as root, or to another engine")
    return _unreadable_layer(where, reason, _NEXT_STEP_OF_DAMAGE)


def _unreadable_layer(where: str, reason: str, then: str) -> EngineError:
    """Return the error that a layer of the image `where` can't be read."""
    return EngineError(Problem(where=where, cause=f"a layer can't be read: {reason}", then=then))
