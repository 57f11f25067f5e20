"""Installed distributions as their metadata tells them: name, version, wheel tags, and the files they say they own."""

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from validate.environment import user_environment
from validate.environment.user_environment import Start, UserEnvironment


@dataclass(frozen=True)
class Entry:
    """One line of a RECORD file."""

    path: str
    """Absolute, normalised, links not followed."""
    sha256: str
    """URL-safe base64 without padding; empty where the RECORD gives none (RECORD itself, bytecode)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Distribution:
    """One `*.dist-info` or `*.egg-info` folder."""

    name: str
    """Canonical (PEP 503)."""
    version: str
    location: str
    """The folder on sys.path that holds it."""
    info: Path
    """What holds its metadata."""
    tags: tuple[str, ...]
    """`cp311-cp311-manylinux_2_28_x86_64`, from the WHEEL file."""
    requires: tuple[str, ...]
    """As it is written: `six>=1`."""
    entries: tuple[Entry, ...] | None
    """None: it has no RECORD, or one that can't be read."""

    def modules(self) -> frozenset[str]:
        """Top-level names that its files can be imported by."""
        return frozenset(
            filter(None, (_module(entry.path, self.location) for entry in self.entries or ()))
        )


def canonical(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(folders: Iterable[str]) -> tuple[Distribution, ...]:
    """Every distribution in these folders of sys.path, in their order; folders that don't exist are skipped."""
    found = []
    for folder in dict.fromkeys(os.path.realpath(folder) for folder in folders if folder):
        if Path(folder).is_dir():
            for info in sorted(Path(folder).iterdir()):
                if info.suffix in (".dist-info", ".egg-info"):
                    found.append(_read(info))
    return tuple(found)


@cache
def of_user() -> tuple[UserEnvironment, Start, tuple[Distribution, ...]]:
    """The image's user, how Python starts for it, every distribution on that Python's path."""
    given = user_environment.recorded()
    start = Start(**given.start)
    return given, start, distributions(start.path)


def locations(installed: Iterable[Distribution]) -> list[str]:
    """Their folders of sys.path."""
    return list(dict.fromkeys(one.location for one in installed))


@cache
def names_of_owners(installed: tuple[Distribution, ...]) -> Mapping[str, tuple[str, ...]]:
    """Absolute path to the names of the distributions that list it."""
    return {
        path: tuple(sorted({one.name for one in own})) for path, own in owners(installed).items()
    }


def owners(installed: Sequence[Distribution]) -> Mapping[str, list[Distribution]]:
    """Absolute path to the distributions that list it."""
    table: dict[str, list[Distribution]] = {}
    for distribution in installed:
        for entry in distribution.entries or ():
            table.setdefault(entry.path, []).append(distribution)
    return table


def _read(info: Path) -> Distribution:
    metadata = (
        info
        if info.is_file()
        else info / ("METADATA" if info.suffix == ".dist-info" else "PKG-INFO")
    )
    headers = list(_headers(metadata))
    fields = dict(headers)
    guessed_name, _, guessed_version = info.stem.partition("-")
    return Distribution(
        name=canonical(fields.get("name", guessed_name)),
        version=fields.get("version", guessed_version.partition("-")[0]),
        location=str(info.parent),
        info=info,
        tags=tuple(value for name, value in _headers(info / "WHEEL") if name == "tag"),
        requires=tuple(value for name, value in headers if name == "requires-dist"),
        entries=_entries(info / "RECORD"),
    )


def _headers(file: Path) -> Iterator[tuple[str, str]]:
    """Lower-case header names and values, up to the first empty line. Nothing where there is no such file."""
    if not file.is_file():
        return
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                return
            name, colon, value = line.partition(":")
            if colon and not line[0].isspace():
                yield name.strip().lower(), value.strip()


def _entries(record: Path) -> tuple[Entry, ...] | None:
    if not record.is_file():
        return None
    location = str(record.parent.parent)
    try:
        with record.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except (csv.Error, UnicodeDecodeError):
        return None
    return tuple(
        Entry(
            path=os.path.normpath(os.path.join(location, row[0])),  # noqa: PTH118  40,000 times
            sha256=row[1].removeprefix("sha256=") if len(row) > 1 and "sha256=" in row[1] else "",
        )
        for row in rows
    )


def _module(path: str, location: str) -> str | None:
    """`torch` for `torch/version.py`, `six` for `six.py`; None for scripts, metadata and bytecode."""
    if not path.startswith(location + os.sep):
        return None
    first, _, rest = path[len(location) + 1 :].partition(os.sep)
    if first.endswith((".dist-info", ".egg-info", ".data", ".libs")) or first == "__pycache__":
        return None
    if rest:
        return first if first.isidentifier() else None
    name, _, suffix = first.partition(".")
    return name if suffix == "py" or suffix.endswith("so") else None
