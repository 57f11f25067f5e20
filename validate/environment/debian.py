"""Installed Debian packages as dpkg's own database tells them: which files they have, and the MD5 sums of those.

https://manpages.debian.org/dpkg-query: `info/PACKAGE.list` and `.md5sums`; configuration files are in `status`.
"""

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
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
def owned(database: str = DATABASE, known: frozenset[str] = frozenset()) -> Owned:
    """Read the database, once a process; nothing where there is none. What several list is a known package's."""
    has: dict[str, str] = {}
    md5: dict[str, str] = {}
    listings = Path(database, "info").glob("*.list")
    for listing in sorted(listings, key=lambda one: (one.stem.partition(":")[0] in known, one)):
        package = listing.stem
        has.update((real(line), package) for line in lines(listing))
        for line in lines(listing.with_suffix(".md5sums")):
            digest, _, path = line.partition("  ")
            md5[real(f"/{path}")] = digest
    for path, to, whom in diversions(database):
        if path in has and has[path].partition(":")[0] != whom:
            has[to] = has[path]
            md5[to] = md5.pop(path, "")
    for one in packages(database).values():
        for line in one.configuration:
            # What dpkg is to remove (`remove-on-upgrade`, deb-conffiles(5)) may be another package's by now.
            if row := re.fullmatch(r"(/.*) ([0-9a-f]{32})( obsolete)?", line):
                md5[real(row[1])] = row[2]
    return Owned(has, {path: digest for path, digest in md5.items() if digest})


def lines(file: Path) -> list[str]:
    """None of what is not there, or no file: a pipe would be waited for."""
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if file.is_file() else []
    except OSError:
        return []


def diversions(database: str = DATABASE) -> list[tuple[str, str, str]]:
    """Files that are elsewhere than in their package: real path, where it is instead, for whom; `:` is a person."""
    rows = lines(Path(database, "diversions"))  # three each
    return [(real(path), real(to), whom) for path, to, whom in zip(rows[0::3], rows[1::3], rows[2::3], strict=False)]


@dataclass(frozen=True, kw_only=True)
class Package:
    """A stanza of dpkg's `status`."""

    version: str
    state: str
    """`install ok installed`."""
    info: str
    """The files of `info/` that are its own begin so."""
    needs: frozenset[str]
    """Names of what it depends on, of alternatives all."""
    provides: frozenset[str]
    in_each_system: bool
    """It is essential, or of priority required or important (Debian policy, 2.5 and 3.8)."""
    configuration: tuple[str, ...]
    """Path and MD5 sum of each configuration file, as it was brought."""
    stanza: tuple[str, ...]
    """Its lines but for the state: what it depends on and is needed for are the archive's word."""


def packages(database: str = DATABASE) -> dict[str, Package]:
    """Name -> package, of those that dpkg knows in any state."""
    found = {}
    for stanza in "\n".join(lines(Path(database, "status"))).split("\n\n"):
        said, configuration = stanza.splitlines(), list[str]()
        if "Conffiles:" in said:
            rest = said[said.index("Conffiles:") + 1 :]
            configuration = list(itertools.takewhile(lambda line: line.startswith(" "), rest))
        fields = dict(line.partition(": ")[::2] for line in said if not line.startswith(" "))
        if name := fields.get("Package"):
            with_architecture = f"{name}:{fields.get('Architecture', '')}"
            multiarch = Path(database, "info", f"{with_architecture}.list").exists()
            found[name] = Package(
                version=fields.get("Version", ""),
                state=fields.get("Status", ""),
                info=with_architecture if multiarch else name,
                needs=_names(f"{fields.get('Pre-Depends', '')},{fields.get('Depends', '')}"),
                provides=_names(fields.get("Provides", "")),
                in_each_system=fields.get("Essential") == "yes" or fields.get("Priority") in ("required", "important"),
                configuration=tuple(line.strip() for line in configuration),
                stanza=tuple(line for line in said if not line.startswith("Status:")),
            )
    return found


def _names(relations: str) -> frozenset[str]:
    """`libc6 (>= 2.36), awk | mawk:any` -> libc6, awk, mawk (Debian policy, 7.1)."""
    return frozenset(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)", relations))


def reached(found: Mapping[str, Package], roots: Iterable[str]) -> set[str]:
    """The packages that these are, or depend on."""
    providers: dict[str, list[str]] = {}
    for name, one in found.items():
        for virtual in one.provides:
            providers.setdefault(virtual, []).append(name)
    seen, ahead = set[str](), list(roots)
    while ahead:
        name = ahead.pop()
        for one in (name, *providers.get(name, ())):
            if one in found and one not in seen:
                seen.add(one)
                ahead += found[one].needs
    return seen


SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
_KEPT = ("list", "md5sums", "conffiles", "triggers", "shlibs", "symbols", "templates", "config", *SCRIPTS)


def control(one: Package, database: str = DATABASE, ends: Sequence[str] = _KEPT) -> dict[str, str]:
    """What dpkg keeps of a package: `list`, `md5sums`, `postinst` and others -> content."""
    files = {end: Path(database, "info", f"{one.info}.{end}") for end in ends}
    return {
        end: file.read_text(encoding="utf-8", errors="surrogateescape") for end, file in files.items() if file.is_file()
    }


def kept_of_packages(database: str = DATABASE) -> list[str]:
    """Paths of what dpkg keeps of each package that it knows; another file there runs as a script of nobody's."""
    return [f"{database}/info/{one.info}.{end}" for one in packages(database).values() for end in _KEPT]


_CHOICE = re.compile(r"--install\s+(/\S+)\s+(\S+)\s+(/\S+)\s+(-?\d+)((?:\s+--slave\s+/\S+\s+\S+\s+/\S+)*)")


def alternatives(database: str = DATABASE) -> dict[str, str]:
    """Link of update-alternatives(1) -> where it leads: to the best of the files that packages have and offer.

    Read in their scripts, which origin/packages holds to the archive's: anybody may write what update-alternatives
    keeps."""
    has, best = owned(database).packages, dict[str, tuple[int, dict[str, str]]]()
    for one in packages(database).values():
        script = "\n".join(control(one, database, SCRIPTS).values()).replace("\\\n", " ")
        for place, name, file, priority, companions in _CHOICE.findall(script):
            if real(file) in has and int(priority) > best.get(name, (-1 << 31,))[0]:
                words = [place, name, file, *(word for word in companions.split() if word != "--slave")]
                named = [f"/etc/alternatives/{word}" for word in words[1::3]]
                best[name] = (
                    int(priority),
                    dict(zip([*map(real, words[0::3]), *named], [*named, *words[2::3]], strict=True)),
                )
    return {link: to for _, links in best.values() for link, to in links.items()}


def real(path: str) -> str:
    """A path whose folders are no links; its last part may be one."""
    folder, _, name = path.rstrip("/").rpartition("/")
    return f"{_real_folder(folder)}/{name}" if name else "/"


@cache
def _real_folder(folder: str) -> str:
    found = os.path.realpath(folder or "/")
    return "" if found == "/" else found


_TRUSTED = "/etc/ssl/certs"
_AUTHORITIES = "/usr/share/ca-certificates/"
_END = "-----END CERTIFICATE-----"
_LOCKED = frozenset({"*", "!", "!*", "!!", "x"})


def authorities(packages: Owned, trusted: str = _TRUSTED) -> tuple[int, int]:
    """How many certificates are trusted that no package brings, and how many of those that one brings are not.

    OpenSSL (of Python, too) looks them up by links of their hashes, curl and git read them in one file.
    """
    known = {one for path in packages.md5 if path.startswith(_AUTHORITIES) for one in _certificates(Path(path))}
    bundle = set(_certificates(Path(trusted, "ca-certificates.crt")))
    linked = {one for path in Path(trusted).glob("????????.[0-9]*") for one in _certificates(path)}
    return len((bundle | linked) - known), len(known - (bundle & linked))


def _certificates(file: Path) -> list[str]:
    return ["".join(one.split()) for one in "\n".join(lines(file)).split(_END) if one.strip()]


def accounts(passwd: str = "/etc/passwd", shadow: str = "/etc/shadow") -> list[str]:
    """What opens a way to root: a second account of uid 0, a password that can be entered or is empty."""
    users = _fields(passwd)
    found = [f"{name} has uid 0" for name, _, uid in users if uid.strip("0") == "" != uid and name != "root"]
    for name, password, _ in (*users, *_fields(shadow)):
        if password not in _LOCKED:
            found.append(f"{name} has {'a' if password else 'no'} password")
    return found


def _fields(file: str) -> list[tuple[str, str, str]]:
    rows = ([*line.split(":"), "", ""] for line in lines(Path(file)) if ":" in line)
    return [(row[0], row[1], row[2]) for row in rows]
