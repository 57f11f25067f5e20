"""Debian's packages by hash: what a base has that is made here, and what the layer above it installs.

`locks/debian/SUITE-ARCHITECTURE.txt`, which all images on that base share, names files of Debian's archives as
sha256sum does. They lie at these paths on every mirror, and in Debian's snapshot archive on the day of the lock.
What a base needs is decided by apt, in a root of its own.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from posixpath import basename as file_name
from urllib.parse import unquote

from images.config import paths
from images.errors import command, failed, wrong
from images.planning.expectations import DEBIAN_PYTHON, DEBIAN_TOOLS
from images.planning.image import Base

FOLDER = "debian"
# In pieces: no tracked file names an index's host (tests/repository/test_tree.py), and an image's sources.list must.
_OWN = "http://deb.{}/{}/".format
ARCHIVES = {
    "debian": ("DEBIAN_MIRROR", _OWN("debian.org", "debian")),
    "debian-security": ("DEBIAN_SECURITY_MIRROR", _OWN("debian.org", "debian-security")),
}
"""Archive -> the variable that names a mirror of it, and Debian's own."""
SNAPSHOT = "DEBIAN_SNAPSHOT"
"""The variable that names another snapshot archive than snapshot.debian.org."""
ASKED = (*DEBIAN_PYTHON, *DEBIAN_TOOLS)
"""What the layer above a base installs."""
INCLUDED = ("apt", "ca-certificates")
"""What a base has beside the packages that Debian calls essential or required."""
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PACKAGE = r"[0-9a-f]{64}  debian(?:-security)?/pool/\S+_\S+_\w+\.deb\n"
_LOCK = re.compile(
    r"# (?P<suite>\S+) (?P<architecture>\S+) (?P<day>\S+)\n"
    r"# .*\n"
    r"# for: (?P<asked>.*)\n"
    rf"# base\n(?P<base>(?:{_PACKAGE})*)"
    rf"# layer\n(?P<layer>(?:{_PACKAGE})*)"
)
_PLAIN = re.compile(r"https?://[^@]+$")
_HEAD = """\
# {suite} {architecture} {day}
# Debian's packages, as of that day: those of the base, then those of the layer above it. Made by `nox -s lock`.
# for: {asked}
"""


@dataclass(frozen=True, kw_only=True)
class DebianLock:
    """The packages of one base and of the layer above it: path below the archives -> sha256."""

    suite: str
    architecture: str
    day: str
    """As the snapshot archive writes it: 20261126T021500Z."""
    asked: tuple[str, ...]
    base: Mapping[str, str]
    layer: Mapping[str, str]

    @property
    def versions(self) -> dict[str, str]:
        """Package -> version, without the epoch."""
        versions = {}
        for path in (*self.base, *self.layer):
            name, version, _ = file_name(path).split("_")
            versions[name] = version
        return versions

    def part(self, files: Mapping[str, str]) -> bytes:
        """A half, as templates/scripts/debian_repository.sh reads it."""
        return f"# {self.suite} {self.architecture} {self.day}\n{_lines(files)}".encode()


def place(base: Base) -> str:
    """Where the lock of a base lies below the folder of locks."""
    return f"{FOLDER}/{base.suite}-{base.platform.architecture}.txt"


def written(lock: DebianLock) -> bytes:
    head = _HEAD.format(
        suite=lock.suite, architecture=lock.architecture, day=lock.day, asked=" ".join(lock.asked)
    )
    return f"{head}# base\n{_lines(lock.base)}# layer\n{_lines(lock.layer)}".encode()


def _lines(files: Mapping[str, str]) -> str:
    return "".join(f"{files[path]}  {path}\n" for path in sorted(files, key=file_name))


def find(base: Base, locks: Path) -> DebianLock | None:
    """Return the lock of a base; None: there is none. Raises UserError: damaged, or made for other packages."""
    file = locks / place(base)
    if base.suite is None or not file.is_file():
        return None
    match = _LOCK.fullmatch(file.read_text(encoding="utf-8", errors="replace"))
    if match is None:
        raise wrong(paths.shown(file), "is damaged", remade())
    asked = tuple(match["asked"].split())
    if asked != ASKED:
        moved = " ".join(sorted({*asked} ^ {*ASKED}))
        raise wrong(paths.shown(file), f"was made for other packages ({moved})", remade())
    return DebianLock(
        suite=match["suite"],
        architecture=match["architecture"],
        day=match["day"],
        asked=asked,
        base=_files(match["base"]),
        layer=_files(match["layer"]),
    )


def _files(lines: str) -> dict[str, str]:
    """Return path -> sha256."""
    files = {}
    for line in lines.splitlines():
        digest, path = line.split()
        files[path] = digest
    return files


def remade() -> str:
    return f"`{command('lock', 'NAME', '--upgrade')}` of an image on that base makes its lock anew"


def require(base: Base, locks: Path) -> DebianLock:
    """The lock of a base. Raises UserError as `find` does, and where there is none."""
    if lock := find(base, locks):
        return lock
    then = f"`{command('lock', 'NAME')}` of an image on that base makes it, on a machine with apt; or --base REF"
    raise wrong(
        paths.shown(locks / place(base)),
        "no lock names the Debian packages that the base is made of",
        then,
    )


def moved(old: DebianLock, new: DebianLock) -> list[str]:
    """Return the packages whose versions differ, or that are in one of the two alone."""
    before, after = old.versions, new.versions
    return [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]


def _apt(scratch: str, suite: str, architecture: str) -> list[str]:
    """apt-get with a suite's signed lists of today, in a root of its own. Needs neither root nor a machine of that
    platform."""
    for folder in ("etc/apt/preferences.d", "lists/partial", "archives/partial"):
        Path(scratch, folder).mkdir(parents=True)
    Path(scratch, "sources.list").write_text(
        "\n".join(source_lines(suite, mirrors(), f"signed-by={KEYS}"))
    )
    Path(scratch, "status").touch()
    settings = {
        "Dir::Etc": f"{scratch}/etc/apt",
        "Dir::Etc::SourceList": f"{scratch}/sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": f"{scratch}/lists",
        "Dir::State::status": f"{scratch}/status",
        "Dir::Cache": scratch,
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Acquire::ForceHash": "sha256",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items())]
    _said([*apt, "update", "--error-on=any"])
    return apt


def resolve(base: Base, now: datetime) -> DebianLock:
    """What apt would install today. Raises UserError."""
    suite, architecture = str(base.suite), base.platform.architecture
    with tempfile.TemporaryDirectory(prefix="truetag-apt-") as scratch:
        install = [
            *_apt(scratch, suite, architecture),
            "install",
            "--print-uris",
            "-y",
            "--no-install-recommends",
        ]
        wanted = ["?essential", "?priority(required)", *INCLUDED]
        files = printed_files(_said([*install, *wanted]))
        whole = printed_files(_said([*install, *wanted, *ASKED]))
    return DebianLock(
        suite=suite,
        architecture=architecture,
        day=f"{now:%Y%m%dT%H%M%SZ}",
        asked=ASKED,
        base=files,
        layer={path: digest for path, digest in whole.items() if path not in files},
    )


def _said(words: Sequence[str]) -> str:
    english = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            words, env=english, capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError:
        then = "lock it on Debian or Ubuntu, or in a container of them"
        raise failed("apt-get", "is not on this machine", then) from None
    if done.returncode != 0:
        cause = "; ".join(done.stderr.strip().splitlines()[-3:]) or f"ended with {done.returncode}"
        then = "are the mirrors right (DEBIAN_MIRROR, DEBIAN_SECURITY_MIRROR), is debian-archive-keyring installed?"
        raise failed("Debian's packages", cause, then)
    return done.stdout


def printed_files(printed: str) -> dict[str, str]:
    """Path below the archives -> sha256, of what `apt-get --print-uris` prints. Raises UserError for other files."""
    found = {}
    for line in (line for line in printed.splitlines() if line.startswith("'")):
        address, digest = line[1:].partition("'")[0], line.rpartition(" SHA256:")[2]
        roots = [(root, archive) for archive, root in mirrors().items() if address.startswith(root)]
        root, archive = max(roots, default=("", ""))
        path = f"{archive}/{unquote(address.removeprefix(root))}"
        if not re.fullmatch(_PACKAGE, f"{digest}  {path}\n"):
            cause = "has no sha256, or lies on none of the mirrors that build steps would ask"
            then = "name mirrors by http:// or https:// (DEBIAN_MIRROR, DEBIAN_SECURITY_MIRROR)"
            raise failed(file_name(address), cause, then)
        found[path] = digest
    return found


@cache
def mirrors() -> Mapping[str, str]:
    """Archive -> address, with a slash: as a variable says, else as this machine's apt does, else Debian's own."""
    listing = ""
    if shutil.which("apt-get"):
        targets = [
            "indextargets",
            "--format",
            "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)",
            "Created-By: Packages",
        ]
        listing = subprocess.run(
            ["apt-get", *targets], capture_output=True, text=True, check=False
        ).stdout
    of_apt = of_listing(listing)
    return {
        archive: f"{(os.environ.get(variable) or of_apt.get(archive, own)).rstrip('/')}/"
        for archive, (variable, own) in ARCHIVES.items()
    }


def of_listing(listing: str) -> dict[str, str]:
    """Archive -> address, from apt's `ORIGIN|LABEL|COMPONENT|URI` lines.

    What build steps can't fetch from (`file:`, `mirror+file:`) is left out, and what holds credentials.
    """
    rows = [line.split("|") for line in listing.splitlines()]
    debian = [
        row
        for row in rows
        if len(row) == 4 and (row[0], row[2]) == ("Debian", "main") and _PLAIN.match(row[3])
    ]
    archives = {"Debian": "debian", "Debian-Security": "debian-security"}
    return {
        archives[label]: address for _, label, _, address in reversed(debian) if label in archives
    }


def source_lines(suite: str, addresses: Mapping[str, str], options: str = "") -> list[str]:
    """apt source lines of a suite."""
    archive, deb = addresses["debian"], f"deb [{options}]" if options else "deb"
    if suite in ("sid", "unstable"):
        return [f"{deb} {archive} {suite} main"]
    security = f"{deb} {addresses['debian-security']} {suite}-security main"
    return [f"{deb} {archive} {suite} main", f"{deb} {archive} {suite}-updates main", security]


def variables() -> dict[str, str]:
    """What build steps must be told of mirrors: those that are not Debian's own."""
    others = {
        ARCHIVES[archive][0]: address
        for archive, address in mirrors().items()
        if address != ARCHIVES[archive][1]
    }
    return others | ({SNAPSHOT: address} if (address := os.environ.get(SNAPSHOT)) else {})
