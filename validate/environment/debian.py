"""Installed Debian packages as dpkg's own database tells them: which files they have, and the MD5 sums of those.

https://manpages.debian.org/dpkg-query: `info/PACKAGE.list` and `.md5sums`; configuration files are in `status`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

DATABASE = "/var/lib/dpkg"


@dataclass(frozen=True)
class Owned:
    """What dpkg knows of the files of all packages, by real path: /bin is a link to /usr/bin."""

    packages: Mapping[str, str] = field(default_factory=dict)
    """Path -> the package that has it."""
    md5: Mapping[str, str] = field(default_factory=dict)
    """Path -> MD5 sum; links and folders have none."""


@cache
def owned(database: str = DATABASE) -> Owned:
    """Read the database, once a process; nothing where there is none."""
    packages: dict[str, str] = {}
    md5: dict[str, str] = {}
    for listing in sorted(Path(database, "info").glob("*.list")):
        package = listing.stem
        packages.update((real(line), package) for line in _lines(listing))
        for line in _lines(listing.with_suffix(".md5sums")):
            digest, _, path = line.partition("  ")
            md5[real(f"/{path}")] = digest
    # Three lines each: the file, where it is instead, the package that has it there.
    lines = _lines(Path(database, "diversions"))
    for path, to in {real(path): real(to) for path, to in zip(lines[0::3], lines[1::3], strict=False)}.items():
        if path in packages:
            packages[to] = packages[path]
            md5[to] = md5.pop(path, "")
    for path, digest in _configuration(Path(database, "status")):
        md5[real(path)] = digest
    return Owned(packages, {path: digest for path, digest in md5.items() if digest})


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _configuration(status: Path) -> Iterator[tuple[str, str]]:
    inside = False
    for line in _lines(status):
        if line.startswith("Conffiles:"):
            inside = True
        elif inside and line.startswith(" "):
            path, digest, *_ = [*line.split(), ""]
            yield path, digest
        else:
            inside = False


def real(path: str) -> str:
    """A path whose folders are no links; its last part may be one."""
    folder, _, name = path.rstrip("/").rpartition("/")
    return f"{_real_folder(folder)}/{name}" if name else "/"


@cache
def _real_folder(folder: str) -> str:
    found = os.path.realpath(folder or "/")
    return "" if found == "/" else found


_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_AUTHORITIES = "/usr/share/ca-certificates"
_END = "-----END CERTIFICATE-----"
_LOCKED = frozenset({"", "*", "!", "!*", "!!", "x"})


def unknown_authorities(bundle: str = _BUNDLE, authorities: str = _AUTHORITIES) -> int:
    """How many certificates of the bundle are in no file of Debian's ca-certificates."""
    if not Path(bundle).is_file():
        return 0
    known = {one for file in sorted(Path(authorities).rglob("*.crt")) for one in _certificates(file)}
    return len([one for one in _certificates(Path(bundle)) if one not in known])


def _certificates(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8", errors="replace")
    return ["".join(one.split()) for one in text.split(_END) if one.strip()]


def accounts(passwd: str = "/etc/passwd", shadow: str = "/etc/shadow") -> list[str]:
    """What opens a way to root: a second account of uid 0, a password that can be entered or is empty."""
    found = []
    for name, password, uid in _fields(passwd):
        if uid == "0" and name != "root":
            found.append(f"{name} has uid 0")
        if password == "":
            found.append(f"{name} has no password")
    for name, password, _ in _fields(shadow):
        if password not in _LOCKED:
            found.append(f"{name} has a password")
        elif password == "":
            found.append(f"{name} has no password")
    return found


def _fields(file: str) -> list[tuple[str, str, str]]:
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    rows = ([*line.split(":"), "", ""] for line in lines if ":" in line)
    return [(row[0], row[1], row[2]) for row in rows]
