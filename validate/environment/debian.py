"""Read dpkg's database: the installed Debian packages, their states, files and MD5 sums.

https://manpages.debian.org/dpkg-query: `info/PACKAGE.list` and `.md5sums`; configuration files are
in `status`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

DATABASE = "/var/lib/dpkg"

_CONFIGURATION_FILE = re.compile(r" (?P<path>/.*) (?P<md5>[0-9a-f]{32})( obsolete)?")
"""A line of the field `Conffiles`. One with `remove-on-upgrade` does not match: the file may be
another package's by now (deb-conffiles(5))."""


@dataclass(frozen=True)
class PackageFiles:
    """The files of all installed packages.

    Paths are real ones (see real_path): a package may list /bin/sh, and /bin is a link to /usr/bin.
    """

    packages: Mapping[str, str] = field(default_factory=dict)
    """Path -> the package that has it."""
    md5: Mapping[str, str] = field(default_factory=dict)
    """Path -> MD5 sum; links and folders have none."""
    configuration: frozenset[str] = frozenset()
    """Paths of configuration files, which people may edit."""


@cache
def read_package_files(database: str = DATABASE) -> PackageFiles:
    """Return the package and the MD5 sum of each file, and which files are for configuration.

    `database` is dpkg's folder. Without it, the result is empty. It is read once a process.
    """
    packages: dict[str, str] = {}
    md5: dict[str, str] = {}
    configuration: set[str] = set()

    # A line of `info/bash.list` is a path. A line of `info/bash.md5sums` is a sum and a path, but
    # without its first slash.
    for listing in sorted(Path(database, "info").glob("*.list")):
        package = _package_of(listing)
        for line in read_lines(listing):
            packages[real_path(line)] = package
        for line in read_lines(listing.with_suffix(".md5sums")):
            digest, _, path = line.partition("  ")
            md5[real_path(f"/{path}")] = digest

    # A package, or a person, may divert the file of another package: dpkg then puts that file
    # elsewhere (`moved_to`), and the diverting package may have its own file at the path.
    for diversion in read_diversions(database):
        owner = packages.get(diversion.path, "")
        if owner and owner != diversion.package:
            packages[diversion.moved_to] = owner
            if diversion.path in md5:
                md5[diversion.moved_to] = md5.pop(diversion.path)

    # MD5 sums of configuration files are only in `status`.
    for stanza in split_stanzas(read_status(database)):
        for line in stanza:
            match = _CONFIGURATION_FILE.fullmatch(line)
            if match:
                path = real_path(match["path"])
                configuration.add(path)
                md5[path] = match["md5"]

    return PackageFiles(packages, md5, frozenset(configuration))


def listed_packages(database: str = DATABASE) -> set[str]:
    """Return the packages of which dpkg has a list of files."""
    return {_package_of(listing) for listing in Path(database, "info").glob("*.list")}


def _package_of(listing: Path) -> str:
    """Return `libc6` for the list of files `libc6:amd64.list`."""
    return listing.stem.partition(":")[0]


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file; none if it is no regular file or can't be read.

    A pipe is not opened: to read it would be to wait.
    """
    try:
        if not file.is_file():
            return []
        return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


class Diversion(NamedTuple):
    """A file that dpkg puts elsewhere than its package says (dpkg-divert(1))."""

    path: str
    """The real path that packages give."""
    moved_to: str
    """The real path at which the file lies instead."""
    package: str
    """The package whose own file stays at `path`; `:` if a person asked for the diversion."""


def read_diversions(database: str = DATABASE) -> list[Diversion]:
    """Return the files that dpkg puts at another path than their package says (dpkg-divert(1)).

    Empty if there is no database of dpkg.
    """
    # A diversion has three lines: the path, where the file lies instead, and the package.
    lines = read_lines(Path(database, "diversions"))
    diversions = []
    for path, moved_to, package in zip(lines[0::3], lines[1::3], lines[2::3], strict=False):
        diversions.append(Diversion(real_path(path), real_path(moved_to), package))
    return diversions


def split_stanzas(status: str) -> list[list[str]]:
    """Return the lines of each package's stanza in the text of dpkg's `status`."""
    return [stanza.splitlines() for stanza in status.split("\n\n") if stanza.strip()]


def read_fields(stanza: Sequence[str]) -> dict[str, str]:
    """Return name -> value of the fields of a stanza that have one line, such as `Version`."""
    fields = {}
    for line in stanza:
        name, colon, value = line.partition(":")
        if colon and not line.startswith((" ", "\t")):
            fields[name] = value.strip()
    return fields


def installed_packages(status: str) -> list[dict[str, str]]:
    """Return the fields of each installed package in the text of dpkg's `status`.

    A removed package that left its configuration is not installed (dpkg-query(1)).
    """
    packages = []
    for stanza in split_stanzas(status):
        fields = read_fields(stanza)
        if "Package" in fields and fields.get("Status", "").endswith(" installed"):
            packages.append(fields)
    return packages


def read_status(database: str = DATABASE) -> str:
    """Return the text of dpkg's `status`; empty if there is no database."""
    return "\n".join(read_lines(Path(database, "status")))


def package_states(database: str = DATABASE) -> dict[str, str]:
    """Return package -> its state as dpkg writes it:

    `install ok half-configured`; empty if it is missing.
    """
    states = {}
    for stanza in split_stanzas(read_status(database)):
        fields = read_fields(stanza)
        if "Package" in fields:
            states[fields["Package"]] = fields.get("Status", "")
    return states


def real_path(path: str) -> str:
    """Return a path whose folders are no links.

    Its last part is left as it is, and may be a link.
    """
    folder, _, name = path.rstrip("/").rpartition("/")
    return f"{_real_folder(folder)}/{name}" if name else "/"


@cache
def _real_folder(folder: str) -> str:
    """Return the real path of a folder, without `/` at its end: empty for the root folder."""
    real_folder = os.path.realpath(folder or "/")
    return "" if real_folder == "/" else real_folder
