"""Measures what files of locks bring, from the index: of a wheel its directory and its RECORD are read by range
requests, and not the gigabyte between.

The bytes are the index's: no hash of a whole file can be checked so. A build checks that (`--require-hashes`), and what
it then installs has the RECORD that was read here, or `origin` fails.
"""

import csv
import io
import os
import re
import ssl
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path

import requests
from requests.adapters import HTTPAdapter

from images.errors import command, failed
from images.host.hashing import sha256
from images.locking import contents, uv
from images.locking.contents import FileContents
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.locking.uv import Runner
from validate.environment import wheel_contents

_AT_ONCE = 16
_PATIENCE = 60.0
"""Seconds for a host to answer."""
_TAIL = 1 << 18
"""Bytes that are read first, from the end: most wheels' directory and RECORD."""
_LEFT_OUT = re.compile(r"^licenses$|(^|/)__init__\.py$|\.alt\.so\.")
"""Of a toolkit's paths: what templates/scripts/toolkit.sh names otherwise or removes."""
_SCRIPT = re.compile(rb"#!.*python[0-9.]*([ \t].*)?(?=\n)")
"""As in setuptools' build_scripts."""


@dataclass(frozen=True, kw_only=True)
class LockedFile:
    """One file of a lock."""

    package: Package
    digest: str
    source: bool
    """A source archive, and no wheel."""
    toolkit: bool
    """Its files are laid out as a toolkit, and not installed as a package."""


def update(
    locks: Mapping[str, Lock],
    folder: Path,
    *,
    run: Runner = uv.run,
    tell: Callable[[str], None] = lambda _text: None,
) -> dict[str, bytes]:
    """Path below `folder` -> content, of the files that change. What a lock's contents have is not asked again.

    `locks` are those of images, by name. Raises UserError: an index that does not answer, or gives no ranges.
    """
    found: dict[LockedFile, FileContents] = {}
    for name, lock in locks.items():
        wanted = [one for one in lacking(lock) if one not in found]
        if wanted:
            tell(f"{name}: reading what {len(wanted)} files bring")
            addresses: dict[str, str] = {}
            for toolkit in (False, True):  # its pins are other versions of what torch needs: they are asked for alone
                exact = {f"{one.package.name}=={one.package.version}" for one in wanted if one.toolkit is toolkit}
                addresses |= uv.addresses(sorted(exact), lock.inputs, run=run, where=name) if exact else {}
            if lost := [one for one in wanted if one.digest not in addresses]:
                first = lost[0].package
                cause = f"the index no longer has {first.name} {first.version} as the lock has it ({len(lost)} files)"
                raise failed(name, cause, f"`{command('lock', name)}`")
            with _session() as session, ThreadPoolExecutor(_AT_ONCE) as pool:
                urls = [addresses[one.digest] for one in wanted]
                rows = pool.map(_measure, wanted, urls, repeat(session))
                found.update(zip(wanted, rows, strict=True))
    changed: dict[str, dict[str, FileContents]] = {}
    for one, new in found.items():
        place = contents.place(one.package)
        known = changed.setdefault(place, dict(contents.every(folder / place)))
        # The same wheel may be a toolkit's part and torch's: each asks for another half of the row.
        before = known.get(one.digest, new)
        halves = {key: getattr(before, key) or getattr(new, key) for key in ("wheel", "files", "paths", "native")}
        known[one.digest] = replace(before, **halves)
    return {place: contents.written(known) for place, known in changed.items()}


def lacking(lock: Lock) -> list[LockedFile]:
    """Files of a lock of which its contents do not say what they bring."""
    rows = {one: lock.contents.get(one.digest) for one in _files(lock)}
    halves = {one: "paths" if one.toolkit else "files" if one.source else "wheel" for one in rows}
    return [one for one, row in rows.items() if not getattr(row, halves[one], None)]


def leftovers(locks: Iterable[Lock], folder: Path) -> list[Path]:
    """Files of packages that are in none of these locks."""
    named = {contents.place(one.package) for lock in locks for one in _files(lock)}
    return [
        path for path in sorted((folder / contents.FOLDER).glob("*.json")) if f"{path.relative_to(folder)}" not in named
    ]


def _files(lock: Lock) -> Iterator[LockedFile]:
    for layer, packages in lock.layers.items():
        for package in packages if layer not in ("tools", "build") else ():  # those are in no layer of the image
            for digest in package.hashes:
                source = package.name in lock.inputs.from_source
                yield LockedFile(package=package, digest=digest, source=source, toolkit=layer == "toolkit")


def _measure(one: LockedFile, url: str, session: requests.Session) -> FileContents:
    """Raises UserError."""
    try:
        if one.source:
            return FileContents(files=wheel_contents.long_tags(_source_rows(one, url, session)))
        with zipfile.ZipFile(io.BufferedReader(RemoteFile(url, session), _TAIL)) as wheel:
            rows = contents.rows_of(wheel)
    except (OSError, zipfile.BadZipFile, tarfile.TarError, csv.Error, KeyError, UnicodeDecodeError) as error:
        then = f"`{command('lock')}` again; UV_DEFAULT_INDEX names another index, one that answers range requests"
        raise failed(contents.shown(url), f"can't be read: {error}", then) from None
    laid_out = [*_laid_out(rows)] if one.toolkit else []
    files = wheel_contents.long_tags(laid_out)
    paths = " ".join(sorted(path for path, _ in laid_out if not _LEFT_OUT.search(path)))
    native = any(".so" in path.rpartition("/")[2] for path in rows)
    return FileContents(wheel=wheel_contents.contents(rows), files=files, paths=paths, native=native)


def _laid_out(rows: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """As templates/scripts/toolkit.sh puts them below /usr/local/cuda-X.Y; licences under names of their own."""
    for path, digest in rows.items():
        top, _, rest = path.partition("/")
        if top == "nvidia" and "/" in rest:
            below = rest.partition("/")[2]
            yield (f"lib64/{below[4:]}" if below.startswith("lib/") else below), digest
        elif top.endswith(".dist-info") and path.rpartition("/")[2].lower().startswith("license"):
            yield "licenses", digest


def _source_rows(one: LockedFile, url: str, session: requests.Session) -> Iterator[tuple[str, str]]:
    """The files of a source archive, which is read whole: its hash is the lock's. Paths count for nothing: what a build
    makes of them is the package's affair. Of a script of Python, also what setuptools makes of it: `#!python`, and the
    arguments of its first line. Raises OSError.
    """
    answer = session.get(url, timeout=_PATIENCE)
    answer.raise_for_status()
    if sha256(answer.content) != one.digest:
        raise OSError(f"it has sha256 {sha256(answer.content)}, the lock has {one.digest}")
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        for file in map(archive.extractfile, filter(tarfile.TarInfo.isfile, archive)):
            content = file.read() if file else b""
            yield "", wheel_contents.record_hash(content)
            if found := _SCRIPT.match(content):
                yield "", wheel_contents.record_hash(b"#!python" + (found[1] or b"") + content[found.end() :])


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
