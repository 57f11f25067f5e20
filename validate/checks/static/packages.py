"""origin/packages: a Debian package from no archive, or one that was changed with its own checksums, looks like any
other.

What dpkg keeps of a package (its stanza, list of files, checksums, scripts) is held to what a version of this suite's
archive brings, as the claim knows it. A version that the claim does not know is unproven; of a suite of which it knows
none, dpkg's database is taken at its word.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from validate.checks import RunAs, Settings
from validate.claims import Claim
from validate.environment import debian
from validate.judging import Finding, conclude, failed, joined, listed, matches, unproven

SETTINGS = Settings(reads_files_only=True, run_as=RunAs.ROOT)

_DIGITS = 16
_SOURCES = "/etc/apt/sources.list"
_MADE_HERE = "/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
"""Debian's own base image has another file, and some that installations write are not as in ours."""
_HELD = (
    "its scripts, its list or checksums of files, or its row of dpkg's status",
    "modes, owners or links of its files, or which are there",
)
"""What the two digests of a package are of."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for claim in claims:
        yield claim.subject, _look(claim.expect)


def _look(expect: Mapping[str, Any], database: str = debian.DATABASE) -> Mapping[str, Any]:
    found, contents = debian.packages(database), expect["contents"]
    owned = debian.owned(database, frozenset(expect["known"]))
    control = {name: debian.control(one, database) for name, one in found.items()}
    present = {path: _facts(path) for path in owned.packages}
    there = {path: facts for path, facts in present.items() if not matches(path, expect["absent"])}
    files: dict[str, list[str]] = {}
    for path, facts in sorted(there.items()):
        if not facts.startswith("folder"):
            files.setdefault(owned.packages[path], []).append(f"{path} {facts}")
    digests = {
        name: [
            _digest([*(part for row in sorted(control[name].items()) for part in row), *one.stanza]),
            _digest(files.get(one.info, ())),
        ]
        for name, one in found.items()
    }
    unlike, unknown = dict[str, list[str]](), {}
    for name, one in found.items():
        known = expect["known"].get(name, {}).get(one.version)
        if known is None:
            unknown[name] = [one.version, *digests[name]]
        elif known != digests[name]:
            unlike[name] = [what for what, was, now in zip(_HELD, known, digests[name], strict=True) if was != now]
    folders = {os.path.dirname(path) for path in owned.packages}  # noqa: PTH120  20,000 times
    gone = [path for path, facts in there.items() if not facts]
    plain = [path for path, facts in present.items() if facts.startswith("file")]
    first = expect["known"] or [name for name, one in found.items() if one.in_each_system]
    reached = debian.reached(found, [*expect["asked"], *first])
    # Debian's own lines of the suite, without options.
    own = r"deb(-src)?\s+https?://(deb|security)\.debian\.org/debian(-security)?/?\s+"
    own += rf"{expect['suite']}([-/][a-z]+)*(\s+[a-z-]+)+"
    root = Path("/")
    held = {*contents, *(str(path) for one in expect["held"] for path in root.glob(one[1:]))}
    return {
        "packages": len(found),
        "unknown": unknown,
        "unlike": unlike,
        "strangers": sorted(found.keys() - reached),
        "unfinished": {name: one.state for name, one in found.items() if one.state != "install ok installed"},
        "missing": {path: owned.packages[path] for path in gone if path in owned.md5 or path not in folders},
        "unhashed": {path: owned.packages[path] for path in plain if path not in owned.md5},
        "generated": {path: now for path in sorted(held) if (now := _content(path)) not in contents.get(path, ("",))},
        "sources": [line for line in debian.lines(Path(_SOURCES)) if not re.fullmatch(rf"\s*(#.*|{own}\s*)?", line)],
    }


def _facts(path: str) -> str:
    """Kind, mode, whether it is root's, and where a link leads; empty: it is not there."""
    try:
        facts = os.lstat(path)
        target = os.readlink(path) if stat.S_ISLNK(facts.st_mode) else ""  # noqa: PTH115  as it is written
    except OSError:
        return ""
    kind = "folder" if stat.S_ISDIR(facts.st_mode) else "link" if target else "file"
    return f"{kind} {stat.S_IMODE(facts.st_mode):o} {facts.st_uid == 0} {facts.st_gid == 0} {target}"


def _digest(rows: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]


def _content(path: str) -> str:
    """The digest of a file, or of where a link leads; empty: it is not there."""
    try:
        content = os.fsencode(os.readlink(path)) if os.path.islink(path) else Path(path).read_bytes()  # noqa: PTH114, PTH115
        return hashlib.sha256(content).hexdigest()[:_DIGITS]
    except OSError:
        return ""


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """origin/packages. expect: {known: {package: {version: digests}}, asked: packages that the image is to have,
    absent: {pattern: why files of packages are not there}, held: patterns of what packages' installations write,
    contents: {of these: digests}, suite: the one that sources of packages name, free: others may be there}.

    evidence: {packages, unknown: {package of a version that the claim does not know: that, and digests of what
    dpkg keeps of it, and of modes, owners and links of its files}, unlike: {package: what of it differs from this
    version's}, strangers: packages that nobody asked for, nor for what depends on them, unfinished: {package: state},
    missing, unhashed: {path: the package that lists it}, generated: {file that installations write, and that is not as
    the claim knows it: its digest}, sources: lines of apt's that are not Debian's own of the suite}.
    """
    if not evidence["packages"]:
        return failed("dpkg's database has no package")
    faults = [
        f"Debian's {name} is not as its archive has it: {' and '.join(what)} differ"
        for name, what in evidence["unlike"].items()
    ]
    faults += [f"{path} of Debian's {owner} is missing" for path, owner in evidence["missing"].items()]
    faults += [
        f"{path} is in the list of Debian's {owner}, which has no checksum of it"
        for path, owner in evidence["unhashed"].items()
    ]
    if not expect["free"]:
        faults += [f"packages come from `{line}`" for line in evidence["sources"]]
        faults += [f"nothing that was asked for needs the Debian package {name}" for name in evidence["strangers"]]
        faults += [f"Debian's {name} is in the state `{state}`" for name, state in evidence["unfinished"].items()]
    known = evidence["packages"] - len(evidence["unknown"])
    good = f"{known} of {evidence['packages']} Debian packages are as their archive has them"
    unknown = [f"{name} {of[0]}" for name, of in evidence["unknown"].items()]
    if expect["free"] or not expect["known"]:
        return conclude(faults, f"{good}, by dpkg's own word {listed(unknown)}" if unknown else good)
    written = [f"{path} is not as the installation of Debian's packages writes it" for path in evidence["generated"]]
    if faults or not (unknown or _MADE_HERE in evidence["generated"]):
        return conclude([*faults, *written], good)
    # Debian moved on, or its own base image is below: what is written there may be others', and nobody here knows.
    doubts = [*(f"what Debian's archive has as {one} is not known here" for one in unknown), *written]
    return unproven(f"{good}, but {joined(doubts, limit=6)}")


CLAIMS = {"origin/packages": judge}
