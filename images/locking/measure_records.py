"""Reads the RECORDs of locked wheels from the index, by range requests: a wheel's directory and its RECORD, and not the
gigabyte between.

The bytes are the index's: no hash of a whole file can be checked so. A build checks that (`--require-hashes`), and what
it then installs has the RECORD that was read here, or `records` fails.
"""

import csv
import io
import os
import re
import ssl
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import requests
from requests.adapters import HTTPAdapter

from images.errors import command, failed
from images.locking import uv, wheel_records
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.locking.uv import Runner
from images.locking.wheel_records import WheelRecord
from validate.environment import wheel_contents

_AT_ONCE = 16
_PATIENCE = 60.0
"""Seconds for a host to answer."""
_TAIL = 1 << 18
"""Bytes that are read first, from the end: most wheels' directory and RECORD."""
_NOT_INSTALLED = ("toolkit", "tools", "build")
"""Layers of a lock whose wheels are no distributions of the image: the toolkit's are unpacked below /usr/local."""


@dataclass(frozen=True, kw_only=True)
class LockedWheel:
    """One wheel of a lock."""

    package: Package
    digest: str


def update(
    locks: Mapping[str, Lock],
    folder: Path,
    *,
    run: Runner = uv.run,
    tell: Callable[[str], None] = lambda _text: None,
) -> dict[str, bytes]:
    """Return the table of RECORDs with those of these locks: path below `folder` -> content; nothing if none is new.

    `locks` are those of images, by name. Raises UserError: an index that does not answer, or gives no ranges.
    """
    table = wheel_records.read(folder)
    read: set[LockedWheel] = set()
    for name, lock in locks.items():
        wheels = [wheel for wheel in lacking(lock) if wheel not in read]
        if not wheels:
            continue
        tell(f"{name}: reading the RECORDs of {len(wheels)} wheels")
        exact = sorted({f"{wheel.package.name}=={wheel.package.version}" for wheel in wheels})
        addresses = uv.addresses(exact, lock.inputs, run=run, where=name)
        lost = [wheel for wheel in wheels if wheel.digest not in addresses]
        if lost:
            first = lost[0].package
            cause = f"the index no longer has {first.name} {first.version} as the lock has it ({len(lost)} files)"
            raise failed(name, cause, f"`{command('lock', name)}`")
        with _session() as session, ThreadPoolExecutor(_AT_ONCE) as pool:
            urls = [addresses[wheel.digest] for wheel in wheels]
            rows = pool.map(_measure, urls, repeat(session))
            for wheel, row in zip(wheels, rows, strict=True):
                table.setdefault(wheel_records.release(wheel.package), {})[wheel.digest] = row
        read.update(wheels)
    return {wheel_records.FILE: wheel_records.written(table)} if read else {}


def lacking(lock: Lock) -> list[LockedWheel]:
    """Return the wheels of a lock whose RECORDs nobody has read."""
    return [wheel for wheel in _wheels(lock) if wheel.digest not in lock.records]


def without_leftovers(locks: Iterable[Lock], folder: Path) -> dict[str, bytes]:
    """Return the table without wheels that are in none of these locks; nothing where all of them are."""
    locked = {wheel.digest for lock in locks for wheel in _wheels(lock)}
    before, after = wheel_records.read(folder), wheel_records.Table()
    for name, rows in before.items():
        remaining = {digest: row for digest, row in rows.items() if digest in locked}
        if remaining:
            after[name] = remaining
    return {wheel_records.FILE: wheel_records.written(after)} if after != before else {}


def _wheels(lock: Lock) -> Iterator[LockedWheel]:
    """Yield the wheels that the image's environment is made of. What a build compiles from source has none."""
    for layer, packages in lock.layers.items():
        if layer in _NOT_INSTALLED:
            continue
        for package in packages:
            if package.name not in lock.inputs.from_source:
                for digest in package.hashes:
                    yield LockedWheel(package=package, digest=digest)


def _measure(url: str, session: requests.Session) -> WheelRecord:
    """Raises UserError."""
    try:
        with zipfile.ZipFile(io.BufferedReader(RemoteFile(url, session), _TAIL)) as wheel:
            rows = wheel_records.rows_of(wheel)
    except (OSError, zipfile.BadZipFile, csv.Error, KeyError, UnicodeDecodeError) as error:
        then = f"`{command('lock')}` again; UV_DEFAULT_INDEX names another index, one that answers range requests"
        raise failed(wheel_records.shown(url), f"can't be read: {error}", then) from None
    native = any(".so" in path.rpartition("/")[2] for path in rows)
    return WheelRecord(record=wheel_contents.digest_of(rows), native=native)


class RemoteFile(io.RawIOBase):
    """A file behind a URL, read by ranges; its end is read first. Raises OSError where the server gives no ranges."""

    def __init__(self, url: str, session: requests.Session) -> None:
        self._url, self._session, self._at = url, session, 0
        self._tail, self._size = self._ask(f"bytes=-{_TAIL}")

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
        end, begin_of_tail = min(self._at + len(buffer), self._size), self._size - len(self._tail)
        if end <= self._at:
            return 0
        if self._at >= begin_of_tail:
            content = self._tail[self._at - begin_of_tail : end - begin_of_tail]
        else:
            content, _ = self._ask(f"bytes={self._at}-{min(end, begin_of_tail) - 1}")
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def _ask(self, wanted: str, *, again: int = 2) -> tuple[bytes, int]:
        """The bytes of a range, and the size of the whole file; an answer that breaks off is asked for again."""
        try:
            with self._session.get(self._url, headers={"Range": wanted}, timeout=_PATIENCE, stream=True) as answer:
                answer.raise_for_status()
                told = re.fullmatch(r"bytes \d+-\d+/(\d+)", answer.headers.get("Content-Range", ""))
                if answer.status_code != requests.codes.partial_content or not told:
                    raise OSError("the server does not answer range requests")
                return answer.content, int(told[1])
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
            if not again:
                raise
        return self._ask(wanted, again=again - 1)


def _session() -> requests.Session:
    """One that keeps its connections, and believes the certificates that Python itself does."""
    session, trusted = requests.Session(), ssl.get_default_verify_paths()
    session.headers["Accept-Encoding"] = "identity"  # ranges of the file, and not of a compressed form
    session.mount("https://", HTTPAdapter(pool_maxsize=_AT_ONCE))
    session.mount("http://", HTTPAdapter(pool_maxsize=_AT_ONCE))
    named = os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT")
    session.verify = named or trusted.cafile or trusted.capath or True
    return session
