"""Reads the RECORD files of locked wheels from the index, without the rest of the wheels.

Range requests fetch the end of a file: the wheel's directory and its RECORD, not the gigabyte
before. So the file's hash can't be checked here. A build checks it (`--require-hashes`), and what
it then installs must have the RECORD that was read here, or the check `records` fails.
"""

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from urllib.parse import urlsplit

import requests

from images.errors import UserError, command, failed
from images.host import web
from images.locking import index_access, uv, wheel_records
from images.locking.index_access import IndexLogin
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.locking.uv import Runner
from images.locking.wheel_records import WheelRecord
from validate.environment import wheel_contents
from validate.environment.wheel_contents import Rows
from validate.judging import plural

_PATIENCE = 60.0
"""Seconds that a host has to answer."""
_ATTEMPTS = 3
_TAIL = 1 << 18
"""Bytes that are read first, from the end. They hold most wheels' directory and RECORD."""
_NOT_INSTALLED = ("toolkit", "tools", "build")
"""Layers whose wheels are not installed in the environment.

Those of the toolkit are unpacked below /usr/local."""


@dataclass(frozen=True, kw_only=True)
class LockedWheel:
    """A wheel of a lock, by its sha256."""

    package: Package
    digest: str


def update(
    locks: Mapping[str, Lock],
    folder: Path,
    *,
    run: Runner = uv.run,
    tell: Callable[[str], None] = lambda _text: None,
) -> dict[str, bytes]:
    """Read the RECORDs of these locks that are not known yet, and return the new table.

    A RECORD is the list of files in a wheel; the table has its digest for each wheel. The table is
    returned as a file: path below `folder` -> content; an empty dict if all RECORDs were known.
    `locks` are by the lock's name, and `folder` is the folder of locks, which has the table so far.
    `run` calls uv, and `tell` gets a line for each lock.

    Raises UserError for an index that does not answer, has lost a wheel, or gives no ranges.
    """
    table = wheel_records.read(folder)
    # Locks share most of their wheels: each is read once.
    measured: set[LockedWheel] = set()
    for name, lock in locks.items():
        # `lacking` returns the wheels that were not known when the lock was read.
        wheels = [wheel for wheel in lacking(lock) if wheel not in measured]
        if not wheels:
            continue
        tell(f"{name}: reading the list of files (RECORD) of {plural(len(wheels), 'wheel')}")
        urls = _find_urls(wheels, lock, run, name)
        login = IndexLogin(lock.inputs.indexes)
        with web.session(login) as session, ThreadPoolExecutor(web.CONNECTIONS) as pool:
            records = pool.map(_measure, urls, repeat(session), repeat(lock.inputs.indexes))
            for wheel, record in zip(wheels, records, strict=True):
                records_of_release = table.setdefault(wheel_records.release(wheel.package), {})
                records_of_release[wheel.digest] = record
        measured.update(wheels)

    if not measured:
        return {}
    return {wheel_records.FILE: wheel_records.serialize(table)}


def _find_urls(wheels: list[LockedWheel], lock: Lock, run: Runner, name: str) -> list[str]:
    """Return the URLs of wheels of a lock, in the order of the wheels.

    A lock has only the hashes of its wheels, so uv is asked where the files lie. `run` calls uv,
    and `name` is the lock's, for messages. Raises UserError if the index no longer has one of them.
    """
    exact = {f"{wheel.package.name}=={wheel.package.version}" for wheel in wheels}
    # sha256 -> URL.
    urls = uv.find_urls(sorted(exact), lock.inputs, run=run, where=name)
    lost = [wheel.package for wheel in wheels if wheel.digest not in urls]
    if lost:
        cause = (
            f"the package index no longer has {lost[0].name} {lost[0].version} as it is locked (of "
            f"the lock's files, {len(lost)} are gone)"
        )
        then = (
            f"`{command('lock', name)}` locks what the index has now; to keep the locked versions, "
            "set UV_DEFAULT_INDEX to an index that has these files (without that variable, uv "
            "takes PyPI), and give the command again"
        )
        raise failed(name, cause, then)
    return [urls[wheel.digest] for wheel in wheels]


def lacking(lock: Lock) -> list[LockedWheel]:
    """Return the wheels of a lock whose RECORDs are not known."""
    return [wheel for wheel in _wheels(lock) if wheel.digest not in lock.wheel_records]


def without_leftovers(locks: Iterable[Lock], folder: Path) -> dict[str, bytes]:
    """Return records.json without the wheels that are in none of these locks.

    The file has a digest of the RECORD of each locked wheel. It lies in `folder`, the folder of
    locks, and is not written here. The result is path below that folder -> new content; it is empty
    if nothing changes.
    """
    locked_digests: set[str] = set()
    for lock in locks:
        locked_digests.update(wheel.digest for wheel in _wheels(lock))

    # Package and version -> digest of each of its wheels -> what is known of that wheel's RECORD.
    old_table = wheel_records.read(folder)
    new_table: wheel_records.Table = {}
    for release, records in old_table.items():
        locked_records = {
            digest: record for digest, record in records.items() if digest in locked_digests
        }
        if locked_records:
            new_table[release] = locked_records

    if new_table == old_table:
        return {}
    return {wheel_records.FILE: wheel_records.serialize(new_table)}


def _wheels(lock: Lock) -> Iterator[LockedWheel]:
    """Yield the wheels that are installed in the image's environment.

    Packages that are built from source while they are installed have none.
    """
    for layer, packages in lock.layers.items():
        # The toolkit is unpacked elsewhere, and installer and build tools are not in the image.
        if layer in _NOT_INSTALLED:
            continue
        for package in packages:
            if package.name in lock.inputs.from_source:
                continue
            # An index may have several wheels of a version that fit: any of them may be installed.
            for digest in package.hashes:
                yield LockedWheel(package=package, digest=digest)


def _measure(url: str, session: requests.Session, private: Mapping[str, str]) -> WheelRecord:
    """Return the digest of the RECORD of the wheel at a URL, and whether the wheel has libraries.

    A RECORD is the list of files in a wheel, with their hashes. `private` has the private indexes:
    the name of each -> its address. Raises UserError if the wheel or its RECORD can't be read.
    """
    try:
        rows = _read_rows(url, session)
    except wheel_records.UNREADABLE as error:
        raise _explain_unread(url, error, private) from None
    # The names of libraries may end in versions (`libcudart.so.12`). `style.source.json` is none.
    native = any(re.search(r"\.so\b[^/]*$", path) for path in rows)
    return WheelRecord(wheel_contents.digest_of(rows), native)


def _explain_unread(url: str, error: Exception, private: Mapping[str, str]) -> UserError:
    """Return the error that the RECORD of the wheel at a URL can't be read; `error` says why.

    `private` has the private indexes: the name of each -> its address.
    """
    again = f"`{command('lock')}`"
    file_name = wheel_records.file_of(url)
    status = error.response.status_code if isinstance(error, requests.HTTPError) else 0
    if status in (401, 403):
        refusal, then = index_access.describe_refusal(url, status, private)
        cause = f"the server of this wheel, {urlsplit(url).hostname}, {refusal}"
        return failed(file_name, cause, f"{then}; then {again}")
    reason = web.describe_failure(error)
    cause = f"the list of files in this wheel can't be read from its index: {reason}"
    then = (
        f"give {again} again; if that fails too, set UV_DEFAULT_INDEX to another index, one that "
        "answers range requests (PyPI, which uv takes without that variable, does), and lock once "
        "more"
    )
    return failed(file_name, cause, then)


def _read_rows(url: str, session: requests.Session) -> Rows:
    """Return the rows of the RECORD of the wheel at a URL, of which only the end is read.

    A RECORD is the list of files in a wheel; a row is a path and its sha256. Raises one of
    `wheel_records.UNREADABLE`: KeyError for a wheel without RECORD, OSError if the server does not
    give the file's end, the others for what is damaged or no wheel.
    """
    # A wheel is a zip, which has its directory at the end, and RECORD is just before that. Read
    # more and more of the end, until both are in it.
    length = _TAIL
    while True:
        tail, size = _read_tail(url, session, length)
        try:
            with zipfile.ZipFile(io.BytesIO(tail)) as wheel:
                return wheel_records.rows_of(wheel)
        except (zipfile.BadZipFile, ValueError):
            # Directory or RECORD begin before what was read. But if the whole file was read, it is
            # not a wheel.
            if length >= size:
                raise
            length *= 8


def _read_tail(url: str, session: requests.Session, length: int) -> tuple[bytes, int]:
    """Return the last `length` bytes of the file at a URL, and the size of the whole file.

    Raises OSError if the server gives no ranges, or does not answer.
    """
    answer = _request_tail(url, session, length)
    answer.raise_for_status()
    # `bytes 700-999/1000`: the last number is the size of the whole file.
    match = re.fullmatch(r"bytes \d+-\d+/(\d+)", answer.headers.get("Content-Range", ""))
    if answer.status_code != requests.codes.partial_content or not match:
        raise OSError("its server does not answer range requests")
    return answer.content, int(match[1])


def _request_tail(url: str, session: requests.Session, length: int) -> requests.Response:
    """Ask for the last `length` bytes of the file at a URL; again if the connection breaks.

    Raises the error of requests if it breaks _ATTEMPTS times.
    """
    attempts_left = _ATTEMPTS
    while True:
        attempts_left -= 1
        try:
            # `bytes=-300`: the last 300 bytes.
            return session.get(url, headers={"Range": f"bytes=-{length}"}, timeout=_PATIENCE)
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
            if not attempts_left:
                raise
