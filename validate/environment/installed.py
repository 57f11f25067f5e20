"""Read the metadata of installed distributions: name, version, wheel tags, and files."""

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from validate.environment import user_environment
from validate.environment.user_environment import Start, UserEnvironment


@dataclass(frozen=True)
class Entry:
    """A line of a RECORD file: a file of a distribution."""

    path: str
    """Absolute and normalised. Links are not followed."""
    sha256: str
    """URL-safe base64, as RECORD has it. Empty where there is none, as for itself and bytecode."""

    @property
    def unpadded_sha256(self) -> str:
        """The hash without `=` at its end: RECORDs should have no padding, and some have it."""
        return self.sha256.rstrip("=")


@dataclass(frozen=True, kw_only=True, eq=False)
class Distribution:
    """A `*.dist-info` or `*.egg-info` folder."""

    name: str
    """Canonical (PEP 503)."""
    version: str
    location: str
    """The folder of sys.path that holds it."""
    info: Path
    """The folder with its metadata; for some an `.egg-info` file."""
    tags: tuple[str, ...]
    """`cp311-cp311-manylinux_2_28_x86_64`, from the WHEEL file."""
    requires: tuple[str, ...]
    """Requirements as they are written: `six>=1`."""
    entries: tuple[Entry, ...] | None
    """None: it has no RECORD, or one that can't be parsed."""
    readable: bool = True
    """Whether this process's user may read its metadata. If not, name and version are those in the
    folder's name, and nothing else is known: `entries` is None. The check `modes` reports it."""

    def modules(self) -> frozenset[str]:
        """Return the top-level names by which its files can be imported."""
        names = set()
        for entry in self.entries or ():
            name = _top_level_name(entry.path, self.location)
            if name:
                names.add(name)
        return frozenset(names)


def _top_level_name(path: str, location: str) -> str | None:
    """Return the top-level name by which Python imports a file: `torch` for `torch/version.py`.

    `location` is the folder of sys.path that holds it. None for files that can't be imported:
    scripts, metadata and bytecode.
    """
    if not path.startswith(location + os.sep):
        return None
    first, _, below = path[len(location) + 1 :].partition(os.sep)
    if first.endswith((".dist-info", ".egg-info", ".data", ".libs")) or first == "__pycache__":
        return None
    # A file in a folder belongs to a package.
    if below:
        return first if first.isidentifier() else None
    # A file beside the packages: `six.py`, or `_cffi_backend.cpython-311-x86_64-linux-gnu.so`.
    name, _, suffix = first.partition(".")
    is_module = suffix == "py" or suffix.endswith("so")
    return name if is_module else None


def canonical(name: str) -> str:
    """Return the canonical name of a distribution (PEP 503): `nvidia-ml-py` for `nvidia_ml_py`."""
    return re.sub(r"[-_.]+", "-", name).lower()


class UserPython(NamedTuple):
    """The image's user, how Python starts for it, and every distribution on that Python's path."""

    user: UserEnvironment
    start: Start
    distributions: tuple[Distribution, ...]


@cache
def read_user_python() -> UserPython:
    """Return the image's user with its Python and distributions. They are read once a process."""
    user = user_environment.recorded()
    start = Start(**user.start)
    return UserPython(user, start, distributions(start.path))


def distributions(folders: Iterable[str]) -> tuple[Distribution, ...]:
    """Return every distribution in these folders of sys.path, in their order.

    Folders that don't exist are skipped, and so are further paths of a folder that was read.
    """
    real_folders = [os.path.realpath(folder) for folder in folders if folder]
    installed = []
    # The keys of a dict: each folder once, in the order of the path.
    for name in dict.fromkeys(real_folders):
        folder = Path(name)
        if not folder.is_dir():
            continue
        for info in sorted(folder.iterdir()):
            is_metadata = info.suffix in (".dist-info", ".egg-info")
            if is_metadata:
                installed.append(_read_distribution(info))
    return tuple(without_copies_of_metadata(installed))


def without_copies_of_metadata(installed: Iterable[Distribution]) -> list[Distribution]:
    """Leave out distributions that are only copies of another one's metadata, without its files.

    The folder for packages that users add has such copies, so that pip takes the image's packages
    for installed there (templates/additions/create.py). `installed` is in the order of sys.path,
    and so is the result.
    """
    # The image's folder comes last on sys.path. So go backwards, to see each distribution before
    # its copy.
    distributions: list[Distribution] = []
    seen_versions: set[tuple[str, str]] = set()
    for distribution in reversed(list(installed)):
        version = (distribution.name, distribution.version)
        if version in seen_versions and not _has_own_files(distribution):
            continue
        seen_versions.add(version)
        distributions.append(distribution)
    return distributions[::-1]


def _has_own_files(distribution: Distribution) -> bool:
    """Return whether any file of a distribution exists in its folder of packages.

    Its metadata do not count, and neither do its commands, which lie in another folder.
    """
    folder = f"{distribution.location}/"
    metadata = f"{distribution.info}/"
    for entry in distribution.entries or ():
        path = entry.path
        is_in_folder = path.startswith(folder) and not path.startswith(metadata)
        # A RECORD may list files that are not there.
        if is_in_folder and os.path.lexists(path):
            return True
    return False


def locations(installed: Iterable[Distribution]) -> list[str]:
    """Return the folders of sys.path that hold these distributions, each once."""
    return list(dict.fromkeys(distribution.location for distribution in installed))


def owners(installed: Sequence[Distribution]) -> Mapping[str, list[Distribution]]:
    """Return absolute path -> the distributions whose RECORD lists this file."""
    table: dict[str, list[Distribution]] = {}
    for distribution in installed:
        for entry in distribution.entries or ():
            table.setdefault(entry.path, []).append(distribution)
    return table


@cache
def names_of_owners(installed: tuple[Distribution, ...]) -> Mapping[str, tuple[str, ...]]:
    """Return absolute path -> the names of the distributions whose RECORD lists this file."""
    names = {}
    for path, file_owners in owners(installed).items():
        names[path] = tuple(sorted({distribution.name for distribution in file_owners}))
    return names


def _read_distribution(info: Path) -> Distribution:
    """Return the distribution whose metadata is in this `*.dist-info` or `*.egg-info` folder.

    An `.egg-info` may also be a file. Name and version that the metadata lacks are taken from the
    folder's name.
    """
    # `six-1.16.0.dist-info`, `six-1.16.0-py3.11.egg-info`
    name, _, version_and_python = info.stem.partition("-")
    version = version_and_python.partition("-")[0]
    if not _is_readable(info):
        return Distribution(
            name=canonical(name),
            version=version,
            location=str(info.parent),
            info=info,
            tags=(),
            requires=(),
            entries=None,
            readable=False,
        )

    if info.is_file():
        metadata = info
    elif info.suffix == ".dist-info":
        metadata = info / "METADATA"
    else:
        metadata = info / "PKG-INFO"
    # Names of headers are in lower case. `requires-dist` may be there many times.
    headers = list(_read_headers(metadata))
    fields = dict(headers)
    wheel_headers = _read_headers(info / "WHEEL")
    return Distribution(
        name=canonical(fields.get("name", name)),
        version=fields.get("version", version),
        location=str(info.parent),
        info=info,
        tags=tuple(value for header, value in wheel_headers if header == "tag"),
        requires=tuple(value for header, value in headers if header == "requires-dist"),
        entries=_read_record(info / "RECORD"),
    )


def _is_readable(info: Path) -> bool:
    """Return whether this process's user may read a distribution's metadata.

    A package that was installed as root with umask 077 is readable for root alone.
    """
    if not os.access(info, os.R_OK):
        return False
    if not info.is_dir():
        return True
    if not os.access(info, os.X_OK):
        return False
    files = [info / name for name in ("METADATA", "PKG-INFO", "WHEEL", "RECORD")]
    return all(os.access(file, os.R_OK) for file in files if file.exists())


def _read_headers(file: Path) -> Iterator[tuple[str, str]]:
    """Yield name, in lower case, and value of each header of a file, up to the first empty line.

    Nothing is yielded if there is no such file.
    """
    if not file.is_file():
        return
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                return
            name, colon, value = line.partition(":")
            # A line that begins with a space continues the one before it.
            if colon and not line[0].isspace():
                yield name.strip().lower(), value.strip()


def _read_record(record: Path) -> tuple[Entry, ...] | None:
    """Return the path and SHA-256 of each file in a RECORD, the list of a package's files.

    Paths are absolute. The hash is base64, and empty for a file without one. None if there is no
    RECORD or it can't be parsed.
    """
    if not record.is_file():
        return None
    location = str(record.parent.parent)
    try:
        with record.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except (csv.Error, UnicodeDecodeError):
        return None

    entries = []
    # A row is PATH,sha256=HASH,BYTES. The path begins at the folder of packages.
    for row in rows:
        path = os.path.normpath(os.path.join(location, row[0]))  # noqa: PTH118  40,000 times
        has_sha256 = len(row) > 1 and "sha256=" in row[1]
        sha256 = row[1].removeprefix("sha256=") if has_sha256 else ""
        entries.append(Entry(path=path, sha256=sha256))
    return tuple(entries)
