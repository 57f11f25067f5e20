"""hygiene: what a build leaves behind costs every pull, and a credential in an image belongs to whoever pulls it.

Every folder of the image is walked, on its own file system alone: what is mounted there is not the image's. Each file
that no package has a checksum of is read for credentials; what is found is told by kind and line, never quoted.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from validate.checks import RunAs, Settings
from validate.claims import Claim
from validate.environment import credentials, debian, installed, wheel_contents
from validate.environment.image_paths import is_plain_file, read_image_paths, source_of_bytecode
from validate.environment.patterns import first_of
from validate.judging import Finding, conclude, failed, listed, passed, unproven

SETTINGS = Settings(
    reads_files_only=True,
    shared_reads=(debian.read_package_files, read_image_paths),
    run_as=RunAs.ROOT,
)

_LARGEST_TEXT, _LARGEST_PROGRAM = 64 << 20, 4 << 20
_MOST_LISTED = 40
_DPKGS_OWN = f"{debian.DATABASE}/info/"


class HygieneExpect(TypedDict):
    """What a claim about leftovers says; the claims about secrets and the home have the same patterns."""

    leftovers: Mapping[str, str]
    """Path pattern -> what such a file is."""


class ToldLeftovers(HygieneExpect, total=False):
    """Of a derived image: some leftovers are reported, and no fault."""

    told: list[str]
    """Their patterns."""


class Leftover(TypedDict):
    """The files that one pattern matches."""

    files: int
    bytes: int
    example: str


class Secret(TypedDict):
    """Where a file holds a credential, and of which kind it is. Never what it is."""

    path: str
    line: int
    """0: its name tells."""
    kind: str


class _Home(TypedDict):
    path: str


class Home(_Home, total=False):
    """The home of the image's user; `error`: why it can't be used. Without that, `mode` and `for_all` are there."""

    mode: str
    """In octal digits."""
    for_all: bool
    """Everybody may write to it."""
    error: str


class HygieneEvidence(TypedDict):
    """What was found in the files of an image."""

    files: int
    read: int
    """Those that were read for credentials."""
    unreadable: list[str]
    leftovers: dict[str, Leftover]
    """By pattern."""
    secrets: list[Secret]
    secrets_count: int
    home: Home


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, HygieneEvidence]]:
    """Look at every file of the image once, for all claims."""
    user, _, distributions = installed.of_user()
    # Packages have checksums of these.
    known_files = set(debian.read_package_files().md5)
    for distribution in distributions:
        for entry in distribution.entries or ():
            if entry.sha256 and not wheel_contents.is_installer_note(entry.path):
                known_files.add(debian.real_path(entry.path))

    patterns: dict[str, str] = {}
    for claim in claims:
        patterns.update(claim.expect["leftovers"])
    evidence = look_at_files(patterns, known_files, look_at_home(user.environ.get("HOME", "")))
    for claim in claims:
        yield claim.subject, evidence


def look_at_home(path: str) -> Home:
    """Return the image's own home, before a validation run puts an empty one in its place."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return {"path": path, "error": error.strerror or str(error)}
    return {"path": path, "mode": f"{stat.S_IMODE(mode):o}", "for_all": mode & 0o007 == 0o007}


def look_at_files(
    patterns: Mapping[str, str], known_files: Collection[str], home: Home
) -> HygieneEvidence:
    """Return the leftovers and credentials among the files of an image."""
    find_pattern = first_of(patterns)
    leftovers: dict[str, Leftover] = {}
    secrets: list[Secret] = []
    files = read = 0
    # What is mounted is not the image's.
    device = os.lstat("/").st_dev
    image = read_image_paths()
    for path, facts in sorted(image.facts.items()):
        if not is_plain_file(facts) or not facts.st_size or facts.st_dev != device:
            continue
        files += 1
        pattern = find_pattern(path)
        if pattern:
            leftover = leftovers.setdefault(pattern, {"files": 0, "bytes": 0, "example": path})
            leftover["files"] += 1
            leftover["bytes"] += facts.st_size

        kind = credentials.kind_by_name(path)
        is_known = (
            path in known_files
            or source_of_bytecode(path) in known_files
            or path.startswith(_DPKGS_OWN)
        )
        if kind:
            secrets.append({"path": path, "line": 0, "kind": kind})
        elif not is_known:
            read += 1
            secrets += find_credentials(path, facts.st_size)
    return {
        "files": files,
        "read": read,
        "unreadable": image.unreadable[:_MOST_LISTED],
        "leftovers": leftovers,
        "secrets": secrets[:_MOST_LISTED],
        "secrets_count": len(secrets),
        "home": home,
    }


def find_credentials(path: str, size: int) -> Iterator[Secret]:
    """Yield the credentials in a file. Of a large one only the beginning is read."""
    content = b""
    with contextlib.suppress(OSError), Path(path).open("rb") as stream:
        content = stream.read(credentials.SMALL)
        if size <= (_LARGEST_PROGRAM if b"\0" in content else _LARGEST_TEXT):
            content += stream.read()
    for line, kind in credentials.find_in_file(content, path):
        yield {"path": path, "line": line, "kind": kind}


def judge_leftovers(_subject: str, expect: ToldLeftovers, evidence: HygieneEvidence) -> Finding:
    """Name each kind of leftover. Some of a derived image are reported."""
    faults = []
    reported = []
    for pattern, leftover in evidence["leftovers"].items():
        megabytes = leftover["bytes"] / 1e6
        what = expect["leftovers"][pattern]
        text = f"{leftover['files']} files ({megabytes:.1f} MB) of {what} are left: {leftover['example']}"
        if pattern in expect.get("told", ()):
            reported.append(text)
        else:
            faults.append(text)

    good = f"none of {evidence['files']} files is a build's leftover"
    if reported:
        good += f", but {listed(reported)}"
    return conclude_if_all_was_read(evidence, faults, good)


def judge_secrets(_subject: str, _expect: HygieneExpect, evidence: HygieneEvidence) -> Finding:
    """Name each file that holds a credential."""
    faults = []
    for secret in evidence["secrets"]:
        line = f" (line {secret['line']})" if secret["line"] else ""
        faults.append(f"{secret['path']} holds {secret['kind']}{line}")
    return conclude_if_all_was_read(
        evidence, faults, f"no credential in {evidence['read']} small files"
    )


def conclude_if_all_was_read(
    evidence: HygieneEvidence, faults: Sequence[str], good: str
) -> Finding:
    """Return PASS only if every folder could be listed."""
    if not faults and evidence["unreadable"]:
        return unproven(f"{good}, but {listed(evidence['unreadable'])} can't be read by this user")
    return conclude(faults, good)


def judge_home(_subject: str, _expect: HygieneExpect, evidence: HygieneEvidence) -> Finding:
    """Fail where the home of the image's user is not there, or not for everybody to write to."""
    home = evidence["home"]
    if "error" in home:
        return failed(f"the home {home['path']!r} can't be used: {home['error']}")
    if not home["for_all"]:
        return failed(
            f"the home {home['path']} is not for every user to write to (mode {home['mode']})"
        )
    return passed(f"{home['path']} is for every user to write to")


CLAIMS = {
    "hygiene/leftovers": judge_leftovers,
    "hygiene/secrets": judge_secrets,
    "hygiene/home": judge_home,
}
