"""S2: a file that is not as its distribution recorded it runs code that nobody chose: every hash is compared.

Named are altered and missing files, paths that two distributions claim with different contents, and importable files
that none claims. Each file is read once, by as many processes as there are cores.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import multiprocessing
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

from validate.claims import Claim
from validate.environment import installed, user_environment
from validate.environment.installed import Distribution
from validate.judging import Finding, conclude, failed, listed

STARTS_FIRST = True


class _FilesAside(TypedDict, total=False):
    aside: list[str]
    """Folders of sys.path that no wheel filled: their files are a package manager's, and not compared."""


class FilesExpect(_FilesAside):
    unowned: dict[str, str]
    """Files that may lie beside packages though no distribution lists them."""


class WrongFile(TypedDict):
    path: str
    owners: dict[str, str]
    """Distribution -> altered or missing."""


class FileInConflict(TypedDict):
    path: str
    owners: list[str]
    holds: list[str]
    """Whose content it has."""


class WithoutRecord(TypedDict):
    name: str
    location: str


class FilesEvidence(TypedDict):
    distributions: int
    files: int
    bytes: int
    wrong: list[WrongFile]
    wrong_count: int
    in_conflict: list[FileInConflict]
    in_conflict_count: int
    shared_alike_count: int
    unowned: list[str]
    unowned_count: int
    without_record: list[WithoutRecord]


_MOST_LISTED = 40
_READ_BYTES = 1 << 20
_BYTES_A_TASK = 64 << 20
_FILES_A_TASK = 500
_CODE = (".py", ".pyc", ".pth", ".so")


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, FilesEvidence]]:
    start = user_environment.start(user_environment.recorded())
    folders = [entry or user_environment.recorded().directory for entry in start.path]
    aside = {folder for claim in claims for folder in cast(FilesExpect, claim.expect).get("aside", ())}
    everything = [one for one in installed.distributions(folders) if one.location not in aside]
    evidence = _compare(everything)
    for claim in claims:
        yield claim.subject, evidence


def _compare(everything: Sequence[Distribution]) -> FilesEvidence:
    # Path to the hash each owner recorded. Files recorded without a hash (RECORD itself) only count as owned, and so
    # does bytecode: a few wheels ship and record some, and installers that compile replace it.
    expected: dict[str, dict[str, str]] = {}
    for distribution in everything:
        for entry in distribution.entries or ():
            if entry.sha256 and "/__pycache__/" not in entry.path:
                expected.setdefault(entry.path, {})[f"{distribution.name} {distribution.version}"] = entry.sha256
    measured, read_bytes = _hash_all(list(expected))
    wrong: list[WrongFile] = [
        {"path": path, "owners": dict.fromkeys(sorted(names), "altered" if measured[path] else "missing")}
        for path, names in _mismatches(expected, measured)
    ]
    shared = {path: hashes for path, hashes in expected.items() if len(hashes) > 1}
    in_conflict: list[FileInConflict] = [
        {"path": path, "owners": sorted(hashes), "holds": sorted(_holders(hashes, measured[path]))}
        for path, hashes in shared.items()
        if len(set(hashes.values())) > 1
    ]
    unowned = sorted(_unowned(everything, expected))
    return {
        "distributions": len(everything),
        "files": len(expected),
        "bytes": read_bytes,
        "wrong": wrong[:_MOST_LISTED],
        "wrong_count": len(wrong),
        "in_conflict": in_conflict[:_MOST_LISTED],
        "in_conflict_count": len(in_conflict),
        "shared_alike_count": len(shared) - len(in_conflict),
        "unowned": unowned[:_MOST_LISTED],
        "unowned_count": len(unowned),
        "without_record": [
            {"name": distribution.name, "location": distribution.location}
            for distribution in everything
            if distribution.entries is None
        ],
    }


def _mismatches(
    expected: Mapping[str, Mapping[str, str]], measured: Mapping[str, str | None]
) -> Iterator[tuple[str, list[str]]]:
    for path, hashes in expected.items():
        names = [name for name, recorded in hashes.items() if recorded.rstrip("=") != measured[path]]
        if names:
            yield path, names


def _holders(hashes: Mapping[str, str], measured: str | None) -> list[str]:
    return [name for name, recorded in hashes.items() if recorded.rstrip("=") == measured]


def _unowned(everything: Sequence[Distribution], expected: Mapping[str, object]) -> Iterator[str]:
    """Importable files beside installed packages that no RECORD lists. Bytecode of an owned source is owned."""
    listed = {entry.path for distribution in everything for entry in distribution.entries or ()}
    for location in {distribution.location for distribution in everything if distribution.entries is not None}:
        for folder, folders, files in os.walk(location):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in files:
                path = f"{folder}/{name}"
                if path not in listed and (name.endswith(_CODE) or ".so." in name):
                    yield path


def _hash_all(paths: Sequence[str]) -> tuple[dict[str, str | None], int]:
    tasks = list(_tasks(paths))
    if not tasks:
        return {}, 0
    workers = min(len(os.sched_getaffinity(0)), len(tasks))
    measured: dict[str, str | None] = {}
    read_bytes = 0
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for part, size in pool.imap_unordered(_hash_some, tasks):
            measured.update(part)
            read_bytes += size
    return measured, read_bytes


def _tasks(paths: Iterable[str]) -> Iterator[list[str]]:
    """Portions of like weight, the biggest files first, so that no core waits for the other at the end."""
    weighed = sorted(((_size(path), path) for path in paths), reverse=True)
    portion: list[str] = []
    weight = 0
    for size, path in weighed:
        portion.append(path)
        weight += size
        if weight >= _BYTES_A_TASK or len(portion) >= _FILES_A_TASK:
            yield portion
            portion, weight = [], 0
    if portion:
        yield portion


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _hash_some(paths: Sequence[str]) -> tuple[dict[str, str | None], int]:
    buffer = memoryview(bytearray(_READ_BYTES))
    results: dict[str, str | None] = {}
    total = 0
    for path in paths:
        results[path], size = _hash(path, buffer)
        total += size
    return results, total


def _hash(path: str, buffer: memoryview) -> tuple[str | None, int]:
    """RECORD's form of the hash, and the bytes read. None: there is no such file, or it can't be read."""
    digest, total = hashlib.sha256(), 0
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  to read a FIFO is to wait for ever
            return None, total
        with open(path, "rb", buffering=0) as stream:  # noqa: PTH123  36,000 times
            while count := stream.readinto(buffer):
                digest.update(buffer[:count])
                total += count
    except OSError:
        return None, total
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode(), total


def judge(_subject: str, expect: FilesExpect, evidence: FilesEvidence) -> Finding:
    """S2. expect: {unowned: {path pattern: why it may be there}}."""
    if not evidence["files"]:
        return failed("no distribution lists a single file")
    faults = [_in_conflict(one) for one in evidence["in_conflict"]]
    told = {one["path"] for one in evidence["in_conflict"]}
    faults += [_wrong(one) for one in evidence["wrong"] if one["path"] not in told]
    faults += [f"{path} belongs to no distribution" for path in _unexcused(evidence["unowned"], expect["unowned"])]
    if hidden := evidence["unowned_count"] - len(evidence["unowned"]):
        faults.append(f"{hidden} more files belong to no distribution")
    for one in evidence["without_record"]:
        if not one["location"].endswith("/dist-packages"):
            faults.append(f"{one['name']} in {one['location']} has no readable RECORD")
    return conclude(faults, f"{evidence['files']} files of {evidence['distributions']} distributions are as recorded")


def _in_conflict(one: FileInConflict) -> str:
    holds = f"it holds {listed(one['holds'])}'s" if one["holds"] else "it holds neither's"
    return f"{one['path']} is claimed by {' and '.join(one['owners'])} with different contents ({holds})"


def _wrong(one: WrongFile) -> str:
    states = sorted(set(one["owners"].values()))
    return f"{one['path']} of {listed(list(one['owners']))} is {' and '.join(states)}"


def _unexcused(paths: Sequence[str], excused: Mapping[str, str]) -> list[str]:
    return [path for path in paths if not any(fnmatch.fnmatchcase(path, f"*/{pattern}") for pattern in excused)]


CLAIMS = {"S2": judge}
