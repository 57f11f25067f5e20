"""Installed Debian packages as dpkg's own database tells them: their states, files, and the MD5 sums of those.

https://manpages.debian.org/dpkg-query: `info/PACKAGE.list` and `.md5sums`; configuration files are in `status`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

DATABASE = "/var/lib/dpkg"

_CONFIGURATION_FILE = re.compile(r" (?P<path>/.*) (?P<md5>[0-9a-f]{32})( obsolete)?")
"""A row of `Conffiles`. One with `remove-on-upgrade` may be another package's by now (deb-conffiles(5))."""


@dataclass(frozen=True)
class Owned:
    """What dpkg knows of the files of all packages, by real path: /bin is a link to /usr/bin."""

    packages: Mapping[str, str] = field(default_factory=dict)
    """Path -> the package that has it."""
    md5: Mapping[str, str] = field(default_factory=dict)
    """Path -> MD5 sum; links and folders have none."""
    configuration: frozenset[str] = frozenset()
    """Paths of configuration files, which people may edit."""


@cache
def owned(database: str = DATABASE) -> Owned:
    """Read which package has which files, once a process. Nothing where there is no database."""
    packages: dict[str, str] = {}
    md5: dict[str, str] = {}
    configuration: set[str] = set()

    for listing in sorted(Path(database, "info").glob("*.list")):
        package = listing.stem.partition(":")[0]  # `libc6:amd64`
        for line in lines(listing):
            packages[real(line)] = package
        for line in lines(listing.with_suffix(".md5sums")):
            digest, _, path = line.partition("  ")
            md5[real(f"/{path}")] = digest

    # A diverted file lies elsewhere than its package says.
    for path, moved_to, diverting_package in diversions(database):
        owner = packages.get(path, "")
        if owner and owner != diverting_package:
            packages[moved_to] = owner
            if path in md5:
                md5[moved_to] = md5.pop(path)

    for stanza in stanzas(read_status(database)):
        for line in stanza:
            if row := _CONFIGURATION_FILE.fullmatch(line):
                path = real(row["path"])
                configuration.add(path)
                md5[path] = row["md5"]

    return Owned(packages, md5, frozenset(configuration))


def listed_packages(database: str = DATABASE) -> set[str]:
    """Return the packages of which dpkg has a list of files."""
    return {listing.stem.partition(":")[0] for listing in Path(database, "info").glob("*.list")}


def lines(file: Path) -> list[str]:
    """Return the lines of a file; none of what is not there, or no file: a pipe would be waited for."""
    try:
        return (
            file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            if file.is_file()
            else []
        )
    except OSError:
        return []


def diversions(database: str = DATABASE) -> list[tuple[str, str, str]]:
    """Return files that are elsewhere than in their package: real path, where it is instead, for whom.

    `:` stands for a person, who called dpkg-divert(1).
    """
    rows = lines(Path(database, "diversions"))  # three lines each
    return [
        (real(path), real(to), whom)
        for path, to, whom in zip(rows[0::3], rows[1::3], rows[2::3], strict=False)
    ]


def stanzas(status: str) -> list[list[str]]:
    """Return the lines of each package's stanza in the text of dpkg's `status`."""
    return [stanza.splitlines() for stanza in status.split("\n\n") if stanza.strip()]


def read_fields(stanza: Sequence[str]) -> dict[str, str]:
    """Return the fields of a stanza that have one line: `Package`, `Status`, `Version` and others."""
    fields = {}
    for line in stanza:
        name, colon, value = line.partition(":")
        if colon and not line.startswith((" ", "\t")):
            fields[name] = value.strip()
    return fields


def installed_packages(status: str) -> list[dict[str, str]]:
    """Return the fields of each installed package. One that left its configuration only is none (dpkg-query(1))."""
    packages = [read_fields(stanza) for stanza in stanzas(status)]
    return [
        fields
        for fields in packages
        if "Package" in fields and fields.get("Status", "").endswith(" installed")
    ]


def read_status(database: str = DATABASE) -> str:
    """Return the text of dpkg's `status`; empty where there is none."""
    return "\n".join(lines(Path(database, "status")))


def states(database: str = DATABASE) -> dict[str, str]:
    """Return package -> its state as dpkg writes it: `install ok installed`, or `install ok half-configured`."""
    packages = [read_fields(stanza) for stanza in stanzas(read_status(database))]
    return {
        fields["Package"]: fields.get("Status", "") for fields in packages if "Package" in fields
    }


def real(path: str) -> str:
    """Return a path whose folders are no links; its last part may be one."""
    folder, _, name = path.rstrip("/").rpartition("/")
    return f"{_real_folder(folder)}/{name}" if name else "/"


@cache
def _real_folder(folder: str) -> str:
    found = os.path.realpath(folder or "/")
    return "" if found == "/" else found
