"""Reads members of a wheel on an index by range requests: its directory and its RECORD, and not the gigabyte between.

The bytes are the index's: no hash of a whole file can be checked so. A build checks that (`--require-hashes`), and what
it then installs has the RECORD that was read here, or S10 fails.
"""

from __future__ import annotations

import csv
import http.client
import io
import re
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping

from images.errors import Problem, UserError, command
from validate.environment import wheel_contents

_PATIENCE = 60.0
"""Seconds for a host to answer."""
_READ_AHEAD = 1 << 18
_ATTEMPTS = 3


class RemoteFile(io.RawIOBase):
    """A file behind a URL, read by ranges. Raises OSError where the server gives no ranges."""

    def __init__(self, url: str) -> None:
        self._url, self._at = url, 0
        self._size = self._ask("bytes=-1")[1]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        content, _ = self._ask(f"bytes={self._at}-{end - 1}")
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def _ask(self, wanted: str) -> tuple[bytes, int]:
        """The bytes of a range, and the size of the whole file."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                return self._answer(wanted)
            except (urllib.error.HTTPError, _NoRangesError):
                raise
            except (OSError, http.client.HTTPException):
                if not left:
                    raise
        raise OSError("no attempt is left")

    def _answer(self, wanted: str) -> tuple[bytes, int]:
        request = urllib.request.Request(self._url, headers={"Range": wanted})
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
            told = re.fullmatch(r"bytes \d+-\d+/(\d+)", answer.headers.get("Content-Range", ""))
            if answer.status != http.client.PARTIAL_CONTENT or not told:
                raise _NoRangesError("the server does not answer range requests")
            return answer.read(), int(told[1])


class _NoRangesError(OSError):
    """A server that only gives whole files."""


def rows(url: str) -> Mapping[str, str]:
    """The rows of a wheel's RECORD, as `validate/environment/wheel_contents.py` has them. Raises UserError."""
    try:
        with zipfile.ZipFile(io.BufferedReader(RemoteFile(url), _READ_AHEAD)) as wheel:
            return rows_of(wheel)
    except (OSError, http.client.HTTPException, zipfile.BadZipFile, csv.Error, KeyError, UnicodeDecodeError) as error:
        cause = f"its RECORD can't be read: {error}"
        then = f"`{command('lock')}` again; UV_DEFAULT_INDEX names another index, one that answers range requests"
        raise UserError(Problem(where=shown(url), cause=cause, then=then), code=1) from None


def rows_of(wheel: zipfile.ZipFile) -> Mapping[str, str]:
    """The same of a wheel that is there. Raises KeyError: it has no RECORD, or several."""
    records = [name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
    if len(records) != 1:
        raise KeyError(f"{len(records)} RECORD files")
    text = wheel.read(records[0]).decode()
    return wheel_contents.of_wheel(csv.reader(io.StringIO(text, newline="")))


def shown(url: str) -> str:
    """A URL's file, for messages."""
    return url.partition("#")[0].rpartition("/")[2]
