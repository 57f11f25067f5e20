"""S8: what a build leaves behind costs every pull, and a credential in an image belongs to whoever pulls it.

Every folder of the image is walked, on its own file system alone: what is mounted there is not the image's. Small text
files outside of the packages are read for credentials; what is found is told by kind and line, never quoted.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from validate.claims import Claim
from validate.environment import credentials, installed, user_environment
from validate.judging import Finding, Status, conclude, failed, listed, passed, unproven

RUN_AS = "root"


class HygieneExpect(TypedDict):
    leftovers: dict[str, str]


class Leftover(TypedDict):
    files: int
    bytes: int
    example: str


class Secret(TypedDict):
    path: str
    line: int
    """0: the file's name tells."""
    kind: str


class _HomeDetails(TypedDict, total=False):
    error: str
    mode: str
    for_all: bool


class Home(_HomeDetails):
    path: str


class HygieneEvidence(TypedDict):
    files: int
    read: int
    unreadable: list[str]
    leftovers: dict[str, Leftover]
    secrets: list[Secret]
    secrets_count: int
    home: Home


_LARGEST_TEXT = 128 << 10
_MOST_LISTED = 40
_SYSTEM = ("/usr/lib/", "/usr/share/", "/usr/include/", "/usr/libexec/", "/usr/bin/", "/usr/sbin/", "/var/lib/dpkg/")
"""Debian's own files, of which dpkg keeps checksums."""
_NEVER = ("/proc", "/sys", "/dev", "/judge")


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, HygieneEvidence]]:
    given = user_environment.recorded()
    start = user_environment.start(given)
    folders = [entry or given.directory for entry in start.path]
    packages = {f"{one.location}/" for one in installed.distributions(folders)}
    skipped = (*sorted(packages), *_SYSTEM, f"{Path(__file__).resolve().parents[2]}/")
    patterns = {pattern: what for claim in claims for pattern, what in claim.expect["leftovers"].items()}
    evidence = _look(patterns, skipped, _home(given.environ.get("HOME", "")))
    yield from ((claim.subject, evidence) for claim in claims)


def _home(path: str) -> Home:
    """The image's own home, before a validation run puts an empty one in its place."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return {"path": path, "error": error.strerror or str(error)}
    return {"path": path, "mode": f"{stat.S_IMODE(mode):o}", "for_all": mode & 0o007 == 0o007}


def _look(leftovers: Mapping[str, str], unread: Sequence[str], home: Home) -> HygieneEvidence:
    compiled = [(re.compile(fnmatch.translate(pattern)), pattern) for pattern in leftovers]
    unreadable: list[str] = []
    left: dict[str, Leftover] = {}
    secrets: list[Secret] = []
    files = read = 0
    for path, facts in _walk("/", unreadable):
        files += 1
        pattern = next((text for match, text in compiled if match.match(path)), None)
        if pattern:
            entry = left.setdefault(pattern, {"files": 0, "bytes": 0, "example": path})
            entry["files"] += 1
            entry["bytes"] += facts.st_size
        if kind := credentials.by_name(path):
            secrets.append({"path": path, "line": 0, "kind": kind})
        elif facts.st_size <= _LARGEST_TEXT and not path.startswith(tuple(unread)):
            read += 1
            secrets += _credentials(path)
    return {
        "files": files,
        "read": read,
        "unreadable": unreadable[:_MOST_LISTED],
        "leftovers": left,
        "secrets": secrets[:_MOST_LISTED],
        "secrets_count": len(secrets),
        "home": home,
    }


def _walk(top: str, unreadable: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files that are not empty, on the file system of `top`."""
    device = os.lstat(top).st_dev

    def complain(error: OSError) -> None:
        unreadable.append(str(error.filename))

    for folder, folders, names in os.walk(top, onerror=complain):
        folders[:] = sorted(name for name in folders if _is_on(device, os.path.join(folder, name)))  # noqa: PTH118
        for name in sorted(names):
            path = os.path.join(folder, name)  # noqa: PTH118
            try:
                facts = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISREG(facts.st_mode) and facts.st_size and facts.st_dev == device:
                yield path, facts


def _is_on(device: int, path: str) -> bool:
    if path in _NEVER:
        return False
    try:
        return os.lstat(path).st_dev == device
    except OSError:
        return False


def _credentials(path: str) -> Iterator[Secret]:
    try:
        content = Path(path).read_bytes()
    except OSError:
        return
    if b"\0" not in content:
        for line, kind in credentials.in_text(content.decode("utf-8", "replace"), path):
            yield {"path": path, "line": line, "kind": kind}


def judge_leftovers(_subject: str, expect: HygieneExpect, evidence: HygieneEvidence) -> Finding:
    """expect: {leftovers: {path pattern: what it is}}."""
    faults = [
        f"{found['files']} files ({found['bytes'] / 1e6:.1f} MB) of {expect['leftovers'][pattern]} are left: "
        f"{found['example']}"
        for pattern, found in evidence["leftovers"].items()
    ]
    return _with_unreadable(evidence, conclude(faults, f"none of {evidence['files']} files is a build's leftover"))


def judge_secrets(_subject: str, expect: HygieneExpect, evidence: HygieneEvidence) -> Finding:
    faults = [
        f"{one['path']} holds {one['kind']}" + (f" (line {one['line']})" if one["line"] else "")
        for one in evidence["secrets"]
    ]
    return _with_unreadable(evidence, conclude(faults, f"no credential in {evidence['read']} small files"))


def judge_home(_subject: str, expect: HygieneExpect, evidence: HygieneEvidence) -> Finding:
    home = evidence["home"]
    if "error" in home:
        return failed(f"the home {home['path']!r} can't be used: {home['error']}")
    if not home["for_all"]:
        return failed(f"the home {home['path']} is not for every user to write to (mode {home['mode']})")
    return passed(f"{home['path']} is for every user to write to")


def _with_unreadable(evidence: HygieneEvidence, finding: Finding) -> Finding:
    if finding.status is Status.PASS and evidence["unreadable"]:
        return unproven(f"{finding.reason}, but {listed(evidence['unreadable'])} can't be read by this user")
    return finding


CLAIMS = {"S8 leftovers": judge_leftovers, "S8 secrets": judge_secrets, "S8 home": judge_home}
