"""Reads the RECORDs of locked wheels from the index, by range requests: a wheel's directory and its RECORD, and not the
gigabyte between.

The bytes are the index's: no hash of a whole file can be checked so. A build checks that (`--require-hashes`), and what
it then installs has the RECORD that was read here, or `records` fails.
"""

import csv
import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import requests

from images.errors import command, failed
from images.host import web
from images.locking import uv, wheel_records
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.locking.uv import Runner
from images.locking.wheel_records import WheelRecord
from validate.environment import wheel_contents

_PATIENCE = 60.0
"""Seconds for a host to answer."""
_ATTEMPTS = 3
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
        with web.session() as session, ThreadPoolExecutor(web.CONNECTIONS) as pool:
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
    """Read the RECORD of a wheel from the end of its file, and from more of it until the RECORD is there.

    Most wheels end with it. Raises UserError.
    """
    length = _TAIL
    try:
        while True:
            tail, size = _read_tail(url, session, length)
            try:
                with zipfile.ZipFile(io.BytesIO(tail)) as wheel:
                    rows = wheel_records.rows_of(wheel)
                break
            except (
                zipfile.BadZipFile,
                ValueError,
            ):  # its directory, or its RECORD, begins before the tail
                if length >= size:
                    raise
                length *= 8
    except (OSError, zipfile.BadZipFile, csv.Error, KeyError, ValueError) as error:
        then = f"`{command('lock')}` again; UV_DEFAULT_INDEX names another index, one that answers range requests"
        raise failed(wheel_records.shown(url), f"can't be read: {error}", then) from None
    native = any(".so" in path.rpartition("/")[2] for path in rows)
    return WheelRecord(record=wheel_contents.digest_of(rows), native=native)


def _read_tail(url: str, session: requests.Session, length: int) -> tuple[bytes, int]:
    """Return the last bytes of a file, and the size of the whole. Raises OSError: the server gives no ranges."""
    for _ in range(_ATTEMPTS):
        try:
            answer = session.get(url, headers={"Range": f"bytes=-{length}"}, timeout=_PATIENCE)
            break
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            broken = error
    else:
        raise broken
    answer.raise_for_status()
    match = re.fullmatch(r"bytes \d+-\d+/(\d+)", answer.headers.get("Content-Range", ""))
    if answer.status_code != requests.codes.partial_content or not match:
        raise OSError("the server does not answer range requests")
    return answer.content, int(match[1])
