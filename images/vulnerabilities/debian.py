"""Debian's own data: which installed packages have a newer version in the suite's security archive, and what it fixes.

The lists and packages come from the mirror that this machine's apt uses, and apt checks their signatures. What a newer
version fixes stands in its changelog, which every package carries: no other service is asked.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from debian.changelog import Changelog
from debian.deb822 import Packages
from debian.debfile import DebError, DebFile
from debian.debian_support import Version

from images.context.bootstrap import mirrors
from images.errors import Problem, UserError
from images.vulnerabilities.findings import Finding, Findings, Severity
from images.vulnerabilities.inventory import DEB, Installed

SUITES: Mapping[str, str] = {"debian-11": "bullseye", "debian-12": "bookworm", "debian-13": "trixie"}
"""Distribution as package URLs have it -> suite."""
SOURCE = "Debian's security archive"
_CVE = re.compile(r"CVE-\d{4}-\d{4,}")
_TRIES = 3
"""Binary packages of one source that are asked for a changelog: the documentation of some is a link to another's."""
_THEN = "run it on a Debian machine where `apt-get update` works; or leave --debian out (`nightly`: --no-updates)"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The newest version of a package in the security archive."""

    package: str
    version: str
    source: str
    size: int
    """Bytes of the .deb."""


@dataclass(frozen=True, kw_only=True)
class Outdated:
    """An installed package, and the version that the security archive has."""

    installed: Installed
    candidate: Candidate


def candidates(listing: str) -> dict[str, Candidate]:
    """The newest version of each package of a `Packages` list. Pure."""
    found: dict[str, Candidate] = {}
    for row in Packages.iter_paragraphs(listing, use_apt_pkg=False):
        one = Candidate(
            package=row["Package"],
            version=row["Version"],
            source=row.get("Source", row["Package"]).split()[0],
            size=int(row.get("Size", 0)),
        )
        if one.package not in found or Version(found[one.package].version) < Version(one.version):
            found[one.package] = one
    return found


def outdated(installed: Sequence[Installed], found: Mapping[str, Candidate]) -> tuple[Outdated, ...]:
    """Packages that are older than the security archive's. Pure."""
    return tuple(
        Outdated(installed=one, candidate=found[one.name])
        for one in installed
        if one.name in found and Version(one.version) < Version(found[one.name].version)
    )


def fixes(changelog: Changelog, before: str) -> tuple[str, ...]:
    """CVEs that a changelog names in entries after a version. Pure."""
    texts = [str(block) for block in changelog if Version(str(block.version)) > Version(before)]
    return tuple(sorted({name for text in texts for name in _CVE.findall(text)}))


def suite_of(installed: Sequence[Installed]) -> str:
    """The suite of an image's packages. Raises UserError for other distributions."""
    distros = {one.distro for one in installed}
    if len(distros) == 1 and (suite := SUITES.get(next(iter(distros)))):
        return suite
    cause = f"its packages are of {', '.join(sorted(distros)) or 'no distribution'}"
    raise UserError(Problem(where="--debian", cause=cause, then=f"give images of {', '.join(SUITES)}"))


def scan(installed: Sequence[Installed], say: Callable[[str], None]) -> Findings:
    """What the security archive has for an image, by CVE. Raises UserError: no apt, no such suite, no network.

    A newer version whose changelog names no CVE is a finding named by package and version. Debian rates none.
    """
    suite = suite_of(installed)
    with _archive(suite) as archive:
        say(f"reading the packages of {suite}-security")
        known = candidates(archive.listing())
        old = outdated(installed, known)
        names: dict[tuple[str, str], tuple[str, ...]] = {}
        for one in old:
            key = (one.candidate.source, one.installed.version)
            if key not in names:
                say(f"reading the changelog of {one.candidate.source} {one.candidate.version}")
                names[key] = archive.fixes(one, known)
    rows = [finding for one in old for finding in _findings(one, names[one.candidate.source, one.installed.version])]
    return Findings(scanner=SOURCE, findings=tuple(rows), covers=frozenset({DEB}))


def _findings(one: Outdated, names: Sequence[str]) -> Iterator[Finding]:
    for name in names or (f"{one.candidate.source} {one.candidate.version}",):
        yield Finding(
            id=name,
            kind=DEB,
            package=one.installed.name,
            version=one.installed.version,
            severity=Severity.UNKNOWN,
            fixed=(one.candidate.version,),
            source=SOURCE,
        )


@dataclass(frozen=True)
class _Archive:
    """apt with a state of its own: this machine's lists and packages are neither read nor changed."""

    folder: Path

    def listing(self) -> str:
        """The packages of the security archive."""
        lists = sorted((self.folder / "lists").glob("*security*_Packages*"))
        if not lists:
            raise UserError(Problem(where="apt-get update", cause="got no list of packages", then=_THEN), code=1)
        return "".join(self._run("/usr/lib/apt/apt-helper", "cat-file", str(file)) for file in lists)

    def fixes(self, one: Outdated, known: Mapping[str, Candidate]) -> tuple[str, ...]:
        """CVEs by the changelog of the smallest packages of the same source and version."""
        of_source = [
            other
            for other in known.values()
            if (other.source, other.version) == (one.candidate.source, one.candidate.version)
        ]
        for other in sorted(of_source, key=lambda found: found.size)[:_TRIES]:
            if changelog := self._changelog(other):
                return fixes(changelog, one.installed.version)
        return ()

    def _changelog(self, one: Candidate) -> Changelog | None:
        self._run("apt-get", "-q", "download", f"{one.package}={one.version}")
        for file in self.folder.glob("*.deb"):
            try:
                with DebFile(str(file)) as package:
                    return package.changelog()
            except (DebError, KeyError, OSError, UnicodeDecodeError):
                return None
            finally:
                file.unlink()
        return None

    def update(self) -> None:
        self._run("apt-get", "-q", "update", "--error-on=any")

    def _run(self, *command: str) -> str:
        options = [option for pair in self._settings().items() for option in ("-o", "=".join(pair))]
        arguments = [command[0], *options, *command[1:]]
        try:
            done = subprocess.run(
                arguments, cwd=self.folder, capture_output=True, text=True, errors="replace", check=False
            )
        except OSError as error:
            raise UserError(Problem(where=command[0], cause=str(error.strerror), then=_THEN)) from None
        if done.returncode != 0:
            cause = "; ".join((done.stderr or done.stdout).strip().splitlines()[-2:])
            raise UserError(Problem(where=" ".join(command[:3]), cause=cause, then=_THEN), code=1)
        return done.stdout

    def _settings(self) -> dict[str, str]:
        return {
            "Dir::Etc::sourcelist": str(self.folder / "sources.list"),
            "Dir::Etc::sourceparts": "-",
            "Dir::State": str(self.folder),
            "Dir::State::lists": str(self.folder / "lists"),
            "Dir::State::status": str(self.folder / "status"),
            "Dir::Cache": str(self.folder / "cache"),
            "APT::Architecture": "amd64",
            "APT::Sandbox::User": "",
        }


@contextmanager
def _archive(suite: str) -> Iterator[_Archive]:
    """The security archive of a suite."""
    lines = [line for line in mirrors(suite) if "-security" in line]
    if not lines:
        cause = "apt on this machine has no source of Debian's security archive"
        raise UserError(Problem(where="Debian's updates", cause=cause, then=_THEN))
    with tempfile.TemporaryDirectory(prefix="truetag-apt-") as name:
        folder = Path(name)
        for path in ("lists/partial", "cache/archives/partial"):
            (folder / path).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "sources.list").write_text("\n".join(lines) + "\n")
        archive = _Archive(folder)
        archive.update()
        yield archive
