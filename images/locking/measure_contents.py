"""Measures what files of locks bring, from the index."""

from __future__ import annotations

import io
import re
import tarfile
import urllib.request
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from images.errors import Problem, UserError, command
from images.host.hashing import sha256
from images.locking import contents, remote_wheel, uv
from images.locking.contents import FileContents, Known
from images.locking.lock_file import Lock, located
from images.locking.uv import Package, Runner
from validate.environment import wheel_contents

_AT_ONCE = 8
_PATIENCE = 60.0
_SCRIPT = re.compile(rb"#!.*python[0-9.]*([ \t].*)?(?=\n)")
"""As in setuptools' build_scripts."""
NOT_INSTALLED = ("tools", "build")
"""Files of a lock whose packages are in no layer of the image."""
TOOLKIT = "toolkit"


@dataclass(frozen=True, kw_only=True)
class _File:
    """One file of a lock."""

    package: Package
    digest: str
    source: bool
    """A source archive, and no wheel."""
    toolkit: bool
    """Its files are laid out as a toolkit, and not installed as a package."""


def update(
    locks: Mapping[str, Lock], folder: Path, *, run: Runner = uv.run, tell: Callable[[str], None] = lambda _text: None
) -> dict[str, bytes]:
    """Path below `folder` -> content, of the files that change. What is known of a file is not asked again.

    `locks` are those of images, by name. Raises UserError: an index that does not answer, or gives no ranges.
    """
    found: dict[_File, FileContents] = {}
    for name, lock in locks.items():
        wanted = [one for one in dict.fromkeys(lacking(lock, folder)) if one not in found]
        if wanted:
            tell(f"{name}: reading what {len(wanted)} files bring")
            found.update(_measured(wanted, _addresses(wanted, locks[name], name, run)))
    changed: defaultdict[str, dict[str, FileContents]] = defaultdict(dict)
    for one, row in found.items():
        rows = changed[contents.place(one.package)]
        rows[one.digest] = _joined(rows.get(one.digest), row)
    return {place: _renewed(folder / place, rows) for place, rows in changed.items()}


def lacking(lock: Lock, folder: Path) -> list[_File]:
    """Files of a lock of which it is not known what they bring."""
    return [one for one in _files(lock) if _is_lacking(one, folder)]


def leftovers(locks: Iterable[Lock], folder: Path) -> list[Path]:
    """Files of packages that are in none of these locks."""
    named = {contents.place(one.package) for lock in locks for one in _files(lock)}
    return [
        path for path in sorted((folder / contents.FOLDER).glob("*.json")) if f"{path.relative_to(folder)}" not in named
    ]


def _files(lock: Lock) -> Iterator[_File]:
    for layer, packages in lock.layers.items():
        for package in packages if layer not in NOT_INSTALLED else ():
            for digest in package.hashes:
                source = package.name in lock.inputs.from_source
                yield _File(package=package, digest=digest, source=source, toolkit=layer == TOOLKIT)


def _is_lacking(one: _File, folder: Path) -> bool:
    elsewhere = contents.read([one.package], located(None))
    known = contents.read([one.package], folder).get(one.digest) or elsewhere.get(one.digest)
    return known is None or not (known.files if one.source or one.toolkit else known.wheel)


def _joined(before: FileContents | None, new: FileContents) -> FileContents:
    if before is None:
        return new
    return replace(
        before, wheel=before.wheel or new.wheel, files=before.files or new.files, native=before.native or new.native
    )


def _renewed(path: Path, rows: Known) -> bytes:
    known = contents.every(path)
    return contents.written({**known, **{digest: _joined(known.get(digest), row) for digest, row in rows.items()}})


def _addresses(files: Sequence[_File], lock: Lock, name: str, run: Runner) -> dict[str, str]:
    """sha256 -> URL. The toolkit's pins are other versions of what torch needs: they are asked for by themselves."""
    found: dict[str, str] = {}
    for toolkit in (False, True):
        exact = sorted({f"{one.package.name}=={one.package.version}" for one in files if one.toolkit is toolkit})
        found.update(uv.addresses(exact, lock.inputs.target, run=run, where=name) if exact else {})
    if lost := [one for one in files if one.digest not in found]:
        first = lost[0].package
        cause = f"the index no longer has {first.name} {first.version} as the lock has it ({len(lost)} files)"
        raise UserError(Problem(where=name, cause=cause, then=f"`{command('lock', name)}`"), code=1)
    return found


def _measured(files: Sequence[_File], addresses: Mapping[str, str]) -> dict[_File, FileContents]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        rows = pool.map(lambda one: _measure(one, addresses[one.digest]), files)
        return dict(zip(files, rows, strict=True))


def _measure(one: _File, url: str) -> FileContents:
    if one.source:
        return FileContents(files=wheel_contents.long_tags(_source_rows(one, url)))
    rows = remote_wheel.rows(url)
    files = wheel_contents.long_tags(_laid_out(rows)) if one.toolkit else ""
    native = any(".so" in path.rpartition("/")[2] for path in rows)
    return FileContents(wheel=wheel_contents.contents(rows), files=files, native=native)


def _laid_out(rows: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """As templates/scripts/toolkit.sh puts them below /usr/local/cuda-X.Y; licences under names of their own."""
    for path, digest in rows.items():
        top, _, rest = path.partition("/")
        if top == "nvidia" and "/" in rest:
            below = rest.partition("/")[2]
            yield (f"lib64/{below[4:]}" if below.startswith("lib/") else below), digest
        elif top.endswith(".dist-info") and path.rpartition("/")[2].lower().startswith("license"):
            yield "licenses", digest


def _source_rows(one: _File, url: str) -> list[tuple[str, str]]:
    """The files of a source archive, which is read whole: its hash is the lock's. Paths count for nothing: what a build
    makes of them is the package's affair.
    """
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
            content = answer.read()
        if sha256(content) != one.digest:
            raise OSError(f"it has sha256 {sha256(content)}, the lock has {one.digest}")
        return [("", wheel_contents.record_hash(form)) for found in _members(content) for form in _forms(found)]
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        cause = f"can't be read: {error}"
        raise UserError(
            Problem(where=remote_wheel.shown(url), cause=cause, then=f"`{command('lock')}` again"), code=1
        ) from None


def _forms(content: bytes) -> Iterator[bytes]:
    """A file, and what setuptools makes of a script of Python: `#!python`, and the arguments of its first line."""
    yield content
    if found := _SCRIPT.match(content):
        yield b"#!python" + (found[1] or b"") + content[found.end() :]


def _members(archive: bytes) -> Iterator[bytes]:
    if zipfile.is_zipfile(io.BytesIO(archive)):
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            yield from (opened.read(name) for name in opened.namelist() if not name.endswith("/"))
        return
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened_tar:
        for member in opened_tar:
            file = opened_tar.extractfile(member) if member.isfile() else None
            if file:
                yield file.read()
