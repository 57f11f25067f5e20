"""hygiene: find leftovers of the build and credentials in the image, and check the user's home.

Leftovers make each pull larger, and a credential belongs to everybody who pulls the image. Every
file of the image is looked at; what is mounted into it is left out. A file that no package has a
checksum of is searched for credentials. They are reported by kind and line, and never quoted.
"""

import contextlib
import hashlib
import os
import re
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from validate.checks import RunAs, Settings
from validate.checks.static.files import to_record_hash
from validate.claims import Claim
from validate.environment import credentials, debian, installed, wheel_contents
from validate.environment.image_paths import (
    ImagePaths,
    is_plain_file,
    read_image_paths,
    source_of_bytecode,
)
from validate.environment.installed import Distribution
from validate.environment.patterns import first_of
from validate.judging import Finding, conclude, failed, listed, passed, unproven

SETTINGS = Settings(
    reads_files_only=True,
    shared_reads=(debian.read_package_files, read_image_paths),
    run_as=RunAs.ROOT,
)

_LARGEST_TEXT, _LARGEST_PROGRAM = 64 << 20, 4 << 20
"""Bytes up to which a file is searched whole for credentials."""
_MOST_LISTED = 40
_DPKGS_NOTES = (f"{debian.DATABASE}/info/",)
"""dpkg writes these files itself: lists of files and sums, for example. No package has them."""
_SYSTEM_FOLDERS = tuple(
    f"/usr/{name}/" for name in ("bin", "include", "lib", "lib64", "libexec", "sbin", "share")
)
"""Where packages of any distribution put their files."""
_TESTS_OF_PYTHON = re.compile(r"/lib/python3\.\d+/test/")
"""Python's tests of itself have keys and passwords. A Python that pyenv compiled brings them, and
no package lists them."""


class HygieneExpect(TypedDict):
    """What a claim about hygiene says. All claims of an image have the same patterns."""

    leftovers: Mapping[str, str]
    """Path pattern -> what such a file is."""


class LeftoversExpect(HygieneExpect, total=False):
    """What the claim about leftovers says."""

    told: list[str]
    """Of a derived image: patterns of leftovers that are reported, and are no fault."""


class Leftover(TypedDict):
    """The files that one pattern matches."""

    files: int
    bytes: int
    example: str
    """The path of one of them."""


class Secret(TypedDict):
    """The place and kind of a credential, never its text."""

    path: str
    line: int
    """0: the file is one for credentials, by its name."""
    kind: str
    """Such as `a GitHub token`."""


class _Home(TypedDict):
    path: str


class Home(_Home, total=False):
    """The home of the image's user. It has either an error, or the other fields."""

    mode: str
    """In octal digits."""
    for_all: bool
    """Everybody may read, write and enter it."""
    error: str
    """Why it can't be used."""


class HygieneEvidence(TypedDict):
    """Leftovers and credentials among the files of an image, and its user's home."""

    files: int
    """How many files there are that are not empty."""
    read: int
    """How many of them were searched for credentials."""
    unreadable: list[str]
    """Folders that can't be listed. The list is cut."""
    leftovers: dict[str, Leftover]
    """By pattern."""
    secrets: list[Secret]
    """The list is cut."""
    secrets_count: int
    home: Home


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, HygieneEvidence]]:
    """Look at every file of the image once, and yield the result with the subject of each claim.

    It finds leftovers of a build, secrets such as keys, and the mode of the user's home. The
    evidence is the same for all claims, and each judges a part of it.
    """
    user, _, distributions = installed.read_user_python()
    patterns: dict[str, str] = {}
    for claim in claims:
        patterns.update(claim.expect["leftovers"])

    image = read_image_paths()
    files = list_files(image)
    # Folders in which no secrets are looked for. Some files of Debian's packages, such as gcc's
    # headers, look as if they had a password. If dpkg is gone, these are not known one by one.
    aside = _DPKGS_NOTES if debian.read_package_files().md5 else _SYSTEM_FOLDERS
    secrets, searched_files = find_secrets(files, list_known_files(distributions), aside)
    evidence: HygieneEvidence = {
        "files": len(files),
        "read": searched_files,
        "unreadable": image.unreadable[:_MOST_LISTED],
        "leftovers": find_leftovers(files, patterns),
        "secrets": secrets[:_MOST_LISTED],
        "secrets_count": len(secrets),
        "home": inspect_home(user.environ.get("HOME", "")),
    }
    for claim in claims:
        yield claim.subject, evidence


def list_files(image: ImagePaths) -> dict[str, int]:
    """Return path -> bytes of each file of the image that is not empty, sorted by path."""
    # A file on another device than the root folder is mounted, and not the image's.
    device = os.lstat("/").st_dev
    sizes = {}
    for path, facts in sorted(image.facts.items()):
        if is_plain_file(facts) and facts.st_size and facts.st_dev == device:
            sizes[path] = facts.st_size
    return sizes


def list_known_files(distributions: Iterable[Distribution]) -> set[str]:
    """Return the files for which a package has a checksum. Other checks compare them with it.

    Notes that an installer writes about a package are left out: pip's `direct_url.json` may hold an
    address with a password.
    """
    known_files = set(debian.read_package_files().md5)
    for distribution in distributions:
        for entry in distribution.entries or ():
            if entry.sha256 and not wheel_contents.is_installer_note(entry.path):
                known_files.add(debian.real_path(entry.path))
    return known_files


def inspect_home(path: str) -> Home:
    """Return the mode of the home folder in the image, or why it can't be read.

    Other checks run with an empty folder in its place.
    """
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return {"path": path, "error": error.strerror or str(error)}
    return {"path": path, "mode": f"{stat.S_IMODE(mode):o}", "for_all": mode & 0o007 == 0o007}


def find_leftovers(files: Mapping[str, int], patterns: Iterable[str]) -> dict[str, Leftover]:
    """Return the leftovers among these files, by the longest pattern that each matches.

    `files` is path -> bytes.
    """
    # find_pattern(path) returns the longest pattern that the path matches, or None: for example
    # `*/.cache/venvs/*` and not `*/.cache/*`.
    find_pattern = first_of(sorted(patterns, key=len, reverse=True))
    leftovers: dict[str, Leftover] = {}
    for path, size in files.items():
        pattern = find_pattern(path)
        if pattern:
            leftover = leftovers.setdefault(pattern, {"files": 0, "bytes": 0, "example": path})
            leftover["files"] += 1
            leftover["bytes"] += size
    return leftovers


def find_secrets(
    files: Mapping[str, int], known_files: Collection[str], aside: tuple[str, ...]
) -> tuple[list[Secret], int]:
    """Return the credentials in these files, and how many files were read to find them.

    files: path -> size in bytes.
    known_files: are not read, and neither is their bytecode.
    aside: folders whose files are not read. Tests of Python itself are not read either.
    """
    secrets: list[Secret] = []
    searched_files = 0
    for path, size in files.items():
        # Some files, such as `.netrc`, are credentials by their name: they need not be read.
        kind = credentials.kind_by_name(path)
        if kind:
            secrets.append({"path": path, "line": 0, "kind": kind})
            continue
        is_known = path in known_files or source_of_bytecode(path) in known_files
        is_aside = path.startswith(aside) or _TESTS_OF_PYTHON.search(path)
        if not is_known and not is_aside:
            searched_files += 1
            secrets_of_file = list(find_credentials(path, size))
            if secrets_of_file and not is_as_wheel_brought(source_of_bytecode(path) or path):
                secrets += secrets_of_file
    return secrets, searched_files


def is_as_wheel_brought(path: str) -> bool:
    """Return whether a file is just as the wheel of an installed package brought it.

    It is if the package's list of files (RECORD), in a folder above, has the file with the same
    hash. No other check looks at packages of a base image's Python, and its pip has examples of
    addresses with a password. Raises OSError if the file can't be read.
    """
    digest = to_record_hash(hashlib.sha256(Path(path).read_bytes()).hexdigest())
    for folder in Path(path).parents:
        name = os.path.relpath(path, folder)
        for record in folder.glob("*.dist-info/RECORD"):
            for line in debian.read_lines(record):
                # A line is PATH,sha256=HASH,BYTES. The path begins at the folder of packages.
                if line.startswith(f"{name},sha256={digest},"):
                    return True
    return False


def find_credentials(path: str, size: int) -> Iterator[Secret]:
    """Yield the credentials in a file of `size` bytes. Only the beginning of a large one is read.

    Nothing is yielded for a file that can't be read.
    """
    content = b""
    with contextlib.suppress(OSError), Path(path).open("rb") as stream:
        content = stream.read(credentials.SMALL_BYTES)
        # A file with a null byte is taken for a program, for which the limit is lower.
        largest = _LARGEST_PROGRAM if b"\0" in content else _LARGEST_TEXT
        if size <= largest:
            content += stream.read()
    for line, kind in credentials.find_in_file(content, path):
        yield {"path": path, "line": line, "kind": kind}


def judge_leftovers(_subject: str, expect: LeftoversExpect, evidence: HygieneEvidence) -> Finding:
    """Pass if a build left no files behind in an image, such as uv's cache.

    `expect["leftovers"]` maps patterns of paths to what such files are. Files that match a pattern
    in `expect["told"]` are no fault: the reason of the PASS names them.
    """
    faults = []
    reported = []
    for pattern, leftover in evidence["leftovers"].items():
        megabytes = leftover["bytes"] / 1e6
        description = expect["leftovers"][pattern]
        files = f"{leftover['files']} files ({megabytes:.1f} MB) of {description}"
        sentence = f"{files} are left: {leftover['example']}"
        if pattern in expect.get("told", ()):
            reported.append(sentence)
        else:
            faults.append(sentence)

    good = f"none of {evidence['files']} files is a build's leftover"
    if reported:
        good += f", but {listed(reported)}"
    return conclude_if_all_was_read(evidence, faults, good)


def judge_secrets(_subject: str, _expect: HygieneExpect, evidence: HygieneEvidence) -> Finding:
    """Fail where a file holds a credential."""
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
    """Return FAIL with the faults; if there are none, PASS with the reason `good`.

    The verdict is UNPROVEN in place of PASS if a folder could not be listed.
    """
    if not faults and evidence["unreadable"]:
        return unproven(
            f"{good}, but truetag ran as a user who may not list {listed(evidence['unreadable'])}, "
            "so it saw no file below",
            "validate again as root (inside a container: `docker run --user 0`), or let everybody "
            "read these folders (`chmod a+rX`) in the step that brings them, and build the image "
            "again",
        )
    return conclude(faults, good)


def judge_home(_subject: str, _expect: HygieneExpect, evidence: HygieneEvidence) -> Finding:
    """Pass if the home of the image's user exists, and every user may write to it.

    People start containers as users of their own (`--user`), and programs write to HOME.
    """
    home = evidence["home"]
    if not home["path"]:
        return failed("the image sets no home (the variable HOME), to which programs write")

    folder = shlex.quote(home["path"])
    step = (
        f"add `RUN mkdir -p {folder} && chmod 777 {folder}` to your Dockerfile, as root, or take "
        "the line out that sets the variable HOME, so that the base image's home is used; then "
        "build the image again"
    )
    if "error" in home:
        return failed(
            f"the home {home['path']!r} can't be used: {home['error']}. Any user may start a "
            "container, and programs write to the home",
            step,
        )
    if not home["for_all"]:
        return failed(
            f"not every user can write to the home {home['path']} (mode {home['mode']}). Any user "
            "may start a container, and programs write to the home",
            step,
        )
    return passed(f"{home['path']} is for every user to write to")


CLAIMS = {
    "hygiene/leftovers": judge_leftovers,
    "base/leftovers": judge_leftovers,
    "hygiene/secrets": judge_secrets,
    "hygiene/home": judge_home,
}
_IN_ONE_STEP = (
    "remove these files in the RUN step that makes them (`RUN pip install --no-cache-dir ...`, "
    "`RUN apt-get install ... && rm -rf /var/lib/apt/lists/*`), as a later step only hides them"
)
NEXT_STEPS = {
    "hygiene/leftovers": f"{_IN_ONE_STEP}, and build the image again",
    "base/leftovers": f"{_IN_ONE_STEP}: in the Dockerfile of the base image, which brought them; "
    "then build both images again",
    "hygiene/secrets": "revoke this credential if the image was ever pushed; then remove the file "
    "in the step that brings it, or give the credential to that step as a build secret (`RUN "
    "--mount=type=secret`), and build the image again",
    "hygiene/home": "take the line of your Dockerfile out that empties or changes the variable "
    "HOME, so that the base image's home is used, and build the image again",
}
