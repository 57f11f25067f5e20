"""Locks Debian's packages by hash: those of a base that we make, and those of the layer above it.

`locks/debian/SUITE-ARCHITECTURE.txt` is shared by all images on a base. It lists files of Debian's
archives in the format of sha256sum. They lie at the same paths on every mirror, and in Debian's
snapshot archive of the lock's day. apt decides which packages these are, in a root of its own.
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
from typing import NamedTuple
from urllib.parse import unquote

from images.config import paths
from images.errors import command, failed, wrong
from images.planning.expectations import DEBIAN_PYTHON, DEBIAN_TOOLS
from images.planning.image import Base

FOLDER = "debian"
# In pieces: no tracked file names an index's host (tests/repository/test_tree.py), but an image's
# sources.list must.
_OWN = "http://deb.{}/{}/".format


class Archive(NamedTuple):
    """An archive of Debian's packages, of which there are mirrors."""

    variable: str
    """The environment variable that names a mirror of it."""
    address: str
    """The address of Debian's own mirror, with a slash at its end."""


ARCHIVES = {
    "debian": Archive("DEBIAN_MIRROR", _OWN("debian.org", "debian")),
    "debian-security": Archive("DEBIAN_SECURITY_MIRROR", _OWN("debian.org", "debian-security")),
}
SNAPSHOT = "DEBIAN_SNAPSHOT"
"""The variable that names a snapshot archive in place of snapshot.debian.org."""
PACKAGES_OF_LAYER = (*DEBIAN_PYTHON, *DEBIAN_TOOLS)
"""The packages that the layer above a base installs, with all that they need."""
EXTRA_PACKAGES_OF_BASE = ("apt", "ca-certificates")
"""What a base has in addition to the packages that Debian calls essential or required."""
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PACKAGE = r"[0-9a-f]{64}  debian(?:-security)?/pool/\S+_\S+_\w+\.deb\n"
"""A line of a lock: `SHA256  debian/pool/main/a/apt/apt_2.6.1_amd64.deb`."""
_LOCK = re.compile(
    r"# (?P<suite>\S+) (?P<architecture>\S+) (?P<day>\S+)\n"
    r"# .*\n"
    r"# for: (?P<requested>.*)\n"
    rf"# base\n(?P<base>(?:{_PACKAGE})*)"
    rf"# layer\n(?P<layer>(?:{_PACKAGE})*)"
)
_PLAIN = re.compile(r"https?://[^@]+$")
_HEAD = """\
# {suite} {architecture} {day}
# Debian's packages, as of that day: those of the base, then those of the layer above it. \
Made by `nox -s lock`.
# for: {requested}
"""


@dataclass(frozen=True, kw_only=True)
class DebianLock:
    """The packages of a base and of the layer above it: path below the archives -> sha256."""

    suite: str
    architecture: str
    day: str
    """When it was made, as the snapshot archive writes it: 20261126T021500Z."""
    requested: tuple[str, ...]
    """The packages that the layer was resolved for."""
    base: Mapping[str, str]
    """The files of the base."""
    layer: Mapping[str, str]
    """The files of the layer above the base. Those that the base has are not among them."""

    @property
    def versions(self) -> dict[str, str]:
        """The version of each package, without its epoch, by the package's name."""
        versions = {}
        for path in (*self.base, *self.layer):
            name, version, _ = file_name(path).split("_")
            versions[name] = version
        return versions

    def serialize_only(self, files: Mapping[str, str]) -> bytes:
        """Return a lock of only these files, as templates/scripts/debian_repository.sh reads it."""
        return f"# {self.suite} {self.architecture} {self.day}\n{_lines(files)}".encode()


def lock_path(base: Base) -> str:
    """Return the path of a base's lock below the folder of locks: `debian/bookworm-amd64.txt`."""
    return f"{FOLDER}/{base.suite}-{base.platform.architecture}.txt"


def serialize(lock: DebianLock) -> bytes:
    """Return the content of a lock's file."""
    head = _HEAD.format(
        suite=lock.suite,
        architecture=lock.architecture,
        day=lock.day,
        requested=" ".join(lock.requested),
    )
    return f"{head}# base\n{_lines(lock.base)}# layer\n{_lines(lock.layer)}".encode()


def _lines(files: Mapping[str, str]) -> str:
    """Return a line `SHA256  PATH` for each file, sorted by its name."""
    return "".join(f"{files[path]}  {path}\n" for path in sorted(files, key=file_name))


def find(base: Base, locks: Path) -> DebianLock | None:
    """Return the lock of a base image, which lists its Debian packages by hash; None: no lock.

    `locks` is the folder of locks. Only a base that is a Debian suite can have a lock. Raises
    UserError for a lock that is damaged, or that was made for other packages than ours.
    """
    file = locks / lock_path(base)
    if base.suite is None or not file.is_file():
        return None
    match = _LOCK.fullmatch(file.read_text(encoding="utf-8", errors="replace"))
    if match is None:
        cause = "this lock is damaged: its text is not as `lock` wrote it"
        raise wrong(paths.shown(file), cause, how_to_remake())
    # The lock names the packages that its layer was resolved for. This release of truetag may
    # install others.
    requested = tuple(match["requested"].split())
    if requested != PACKAGES_OF_LAYER:
        cause = (
            "this lock was made for another list of Debian packages than the one that this truetag "
            f"installs: {_describe_difference(requested)}"
        )
        raise wrong(paths.shown(file), cause, how_to_remake())
    return DebianLock(
        suite=match["suite"],
        architecture=match["architecture"],
        day=match["day"],
        requested=requested,
        base=_parse_lines(match["base"]),
        layer=_parse_lines(match["layer"]),
    )


def _describe_difference(requested: Sequence[str]) -> str:
    """Return how the packages for which a lock was made differ from those that we install today."""
    lacking = [name for name in PACKAGES_OF_LAYER if name not in requested]
    surplus = [name for name in requested if name not in PACKAGES_OF_LAYER]
    parts = []
    if lacking:
        parts.append(f"it lacks {', '.join(lacking)}")
    if surplus:
        parts.append(f"{', '.join(surplus)} is no longer installed")
    return "; ".join(parts) or "their order differs"


def _parse_lines(lines: str) -> dict[str, str]:
    """Return the sha256 of each file by its path, from lines `SHA256  PATH`."""
    files = {}
    for line in lines.splitlines():
        digest, path = line.split()
        files[path] = digest
    return files


def how_to_remake() -> str:
    """Return the next step for a lock that can't be used."""
    lock_command = command("lock", "NAME", "--upgrade")
    return (
        f"`{lock_command}`, with the name of your image for NAME, locks Debian's packages anew; "
        "then give the command again"
    )


def require(base: Base, locks: Path) -> DebianLock:
    """Return the lock of a base from the folder of locks.

    Raises UserError if there is none, if it is damaged, or if it was made for other packages.
    """
    lock = find(base, locks)
    if lock is None:
        cause = "this lock, of the Debian packages that the base is made of, is missing"
        then = (
            f"`{command('lock', 'NAME')}`, with the name of your image for NAME, makes the lock on "
            "a machine with apt, then build again; or build on an image that you have: --base REF"
        )
        raise wrong(paths.shown(locks / lock_path(base)), cause, then)
    return lock


def changed_packages(old: DebianLock, new: DebianLock) -> list[str]:
    """Return the packages whose versions differ, or that are in only one of two locks, sorted."""
    before, after = old.versions, new.versions
    names = sorted({*before, *after})
    return [name for name in names if before.get(name) != after.get(name)]


def resolve(base: Base, now: datetime) -> DebianLock:
    """Return a lock of the Debian packages that apt would install today.

    It lists them by hash: those of the base image, and those of the layer above it. Nothing is
    installed, and only package lists are downloaded. `base` must be a Debian suite, and `now` is
    the time for the lock's head. Raises UserError if apt-get fails.
    """
    suite, architecture = str(base.suite), base.platform.architecture
    # apt's patterns for what every Debian system has.
    packages_of_base = ["?essential", "?priority(required)", *EXTRA_PACKAGES_OF_BASE]
    with tempfile.TemporaryDirectory(prefix="truetag-apt-") as scratch:
        apt = _apt_with_fresh_lists(scratch, suite, architecture)
        # --print-uris: only print the files that apt would download.
        install = [*apt, "install", "--print-uris", "-y", "--no-install-recommends"]
        base_files = printed_files(_run_apt([*install, *packages_of_base]))
        all_files = printed_files(_run_apt([*install, *packages_of_base, *PACKAGES_OF_LAYER]))
    return DebianLock(
        suite=suite,
        architecture=architecture,
        day=f"{now:%Y%m%dT%H%M%SZ}",
        requested=PACKAGES_OF_LAYER,
        base=base_files,
        # In both calls apt starts from an empty system, so `all_files` includes the base's.
        layer={path: digest for path, digest in all_files.items() if path not in base_files},
    )


def _apt_with_fresh_lists(scratch: str, suite: str, architecture: str) -> list[str]:
    """Download a suite's signed package lists of today, and return the apt-get command to use them.

    All of apt's files are in the folder `scratch`. So apt needs no rights, leaves this machine's
    packages alone, and resolves for an architecture that this machine need not have. Raises
    UserError if apt-get fails.
    """
    # Folders that apt-get expects: it complains or fails if they are missing.
    for folder in ("etc/apt/preferences.d", "lists/partial", "archives/partial"):
        Path(scratch, folder).mkdir(parents=True)
    sources = source_lines(suite, mirrors(), f"signed-by={KEYS}")
    Path(scratch, "sources.list").write_text("\n".join(sources))
    # An empty list of installed packages.
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
        # Otherwise apt, called by root, changes to its own user, who may not write to `scratch`.
        "APT::Sandbox::User": "root",
        # A package list has several hashes of each file. --print-uris is to print this one.
        "Acquire::ForceHash": "sha256",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items())]
    _run_apt([*apt, "update", "--error-on=any"])
    return apt


def _run_apt(words: Sequence[str]) -> str:
    """Run an apt-get command (`words`) and return what it prints on stdout.

    Raises UserError if it fails, or if this machine has no apt-get.
    """
    # The last lines of its output become part of our message, which is in English.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        finished = subprocess.run(
            words, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError:
        then = "give the command on Debian or Ubuntu, or in a container of one of them"
        cause = "this machine has no apt-get, which says what a Debian base is made of"
        raise failed("apt-get", cause, then) from None
    if finished.returncode != 0:
        last_lines = finished.stderr.strip().splitlines()[-3:]
        cause = "; ".join(last_lines) or f"apt-get ended with status {finished.returncode}"
        then = (
            "if you set DEBIAN_MIRROR or DEBIAN_SECURITY_MIRROR, see that these mirrors answer; "
            "install Debian's keys (`apt-get install debian-archive-keyring`); then give the "
            "command again"
        )
        raise failed("Debian's packages", cause, then)
    return finished.stdout


def printed_files(printed: str) -> dict[str, str]:
    """Return the files that `apt-get --print-uris` prints: path below the archives -> sha256.

    A path begins with the archive's name: `debian/pool/main/a/apt/apt_2.6.1_amd64.deb`. Raises
    UserError for a file without sha256, or that is on none of the mirrors.
    """
    files = {}
    for line in printed.splitlines():
        # A file's line reads: 'URL' NAME SIZE SHA256:DIGEST. Other lines are messages.
        if not line.startswith("'"):
            continue
        address = line[1:].partition("'")[0]
        digest = line.rpartition(" SHA256:")[2]
        path = _path_below_archives(address)
        # Check that both give a valid line of the lock. They do not if the hash is missing, or if
        # the address is not one of a known mirror.
        if not re.fullmatch(_PACKAGE, f"{digest}  {path}\n"):
            cause = (
                f"apt-get would fetch this package from {address}, and a build can't: it is on "
                "none of the mirrors that a build uses, or its mirror gives no sha256 for it"
            )
            then = (
                "set the variables DEBIAN_MIRROR and DEBIAN_SECURITY_MIRROR to http:// or https:// "
                "mirrors that have the package, with sha256 in their lists, then lock again"
            )
            raise failed(file_name(address), cause, then)
        files[path] = digest
    return files


def _path_below_archives(address: str) -> str:
    """Return the path of a package below the archives, by its URL: `debian/pool/main/...`.

    If the URL is not one of a known mirror, the result is a slash and the URL, which no lock
    accepts.
    """
    matching = []
    for archive, root in mirrors().items():
        if address.startswith(root):
            matching.append((root, archive))
    # If one mirror's address begins with another's, `max` takes the longer one.
    root, archive = max(matching, default=("", ""))
    return f"{archive}/{unquote(address.removeprefix(root))}"


@cache
def mirrors() -> Mapping[str, str]:
    """Return the address of a mirror of each archive, `debian` and `debian-security`.

    An address ends with a slash. It is the one that a variable (DEBIAN_MIRROR) names, else that of
    this machine's apt, else Debian's own.
    """
    # Ubuntu has apt as well. `parse_apt_listing` leaves out archives that are not Debian's.
    listing = ""
    if shutil.which("apt-get"):
        fields = "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)"
        words = ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]
        finished = subprocess.run(words, capture_output=True, text=True, check=False)
        listing = finished.stdout
    addresses_of_apt = parse_apt_listing(listing)

    addresses = {}
    for name, archive in ARCHIVES.items():
        default_address = addresses_of_apt.get(name, archive.address)
        address = os.environ.get(archive.variable) or default_address
        addresses[name] = f"{address.rstrip('/')}/"
    return addresses


def parse_apt_listing(listing: str) -> dict[str, str]:
    """Return the address of each of Debian's archives, from lines `ORIGIN|LABEL|COMPONENT|URI`.

    apt prints such a line for each of its sources. Of several addresses, the first counts. Those
    that build steps can't fetch from (`file:`, `mirror+file:`) and those with credentials are left
    out.
    """
    # The label that an archive's package lists have -> our name of the archive.
    archives = {"Debian": "debian", "Debian-Security": "debian-security"}
    addresses: dict[str, str] = {}
    for line in listing.splitlines():
        fields = line.split("|")
        if len(fields) != 4:
            continue
        # Other origins (Ubuntu) and components (contrib) are other archives.
        origin, label, component, address = fields
        if origin != "Debian" or component != "main" or label not in archives:
            continue
        # `_PLAIN`: http or https, without a login.
        if _PLAIN.match(address):
            addresses.setdefault(archives[label], address)
    return addresses


def source_lines(suite: str, addresses: Mapping[str, str], options: str = "") -> list[str]:
    """Return the lines of a sources.list for a suite.

    `addresses`: name of an archive (`debian`, `debian-security`) -> address of a mirror. `options`
    (`signed-by=FILE`) go into each line.
    """
    archive = addresses["debian"]
    deb = f"deb [{options}]" if options else "deb"
    if suite in ("sid", "unstable"):
        # Unstable has no updates and no security archive.
        return [f"{deb} {archive} {suite} main"]
    return [
        f"{deb} {archive} {suite} main",
        f"{deb} {archive} {suite}-updates main",
        f"{deb} {addresses['debian-security']} {suite}-security main",
    ]


def variables() -> dict[str, str]:
    """Return the variables (name -> value) that tell build steps which mirrors to use.

    For example `{"DEBIAN_MIRROR": "http://mirror.example/debian/"}`. Each value comes from the same
    variable of this process, or else from the sources of this machine's apt (`mirrors`). There is
    none for an archive that is fetched from Debian itself.
    """
    settings = {}
    for name, address in mirrors().items():
        archive = ARCHIVES[name]
        if address != archive.address:
            settings[archive.variable] = address
    snapshot = os.environ.get(SNAPSHOT)
    if snapshot:
        settings[SNAPSHOT] = snapshot
    return settings
