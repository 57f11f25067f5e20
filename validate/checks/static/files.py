"""files: a file that is not as its distribution recorded it runs code that nobody chose: every hash is compared.

Named are altered and missing files, paths that two distributions claim with different contents, and importable files
that none claims. Each file is read once, by as many processes as there are cores.
"""

import base64
import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.environment.installed import Distribution
from validate.harness.forked import map_on_all_cores
from validate.judging import Finding, conclude, count_unlisted, failed, listed, matches

SETTINGS = Settings(reads_files_only=True, starts_first=True)

_MOST_LISTED = 40
_READ_BYTES = 1 << 20
_FILES_A_TASK = 500
_CODE = (".py", ".pyc", ".pth", ".so")


class _FilesExpect(TypedDict):
    unowned: Mapping[str, str]
    """Path pattern -> why such a file may belong to no distribution."""


class FilesExpect(_FilesExpect, total=False):
    """Files that need no owner."""

    aside: list[str]
    """Of anybody's image: folders of sys.path that no wheel filled. Their files are a package manager's."""


class WrongFile(TypedDict):
    """A file that is not as recorded. `owners`: distribution -> `altered` or `missing`."""

    path: str
    owners: dict[str, str]


class Conflict(TypedDict):
    """A file that several distributions recorded with different contents."""

    path: str
    owners: list[str]
    holds: list[str]
    """Those of them whose content it has."""


class WithoutRecord(TypedDict):
    """A distribution whose RECORD is not there or can't be read."""

    name: str
    location: str


class FilesEvidence(TypedDict):
    """Files of all distributions, compared with their RECORDs. Lists of files are cut."""

    distributions: int
    files: int
    wrong: list[WrongFile]
    in_conflict: list[Conflict]
    unowned: list[str]
    unowned_count: int
    without_record: list[WithoutRecord]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, FilesEvidence]]:
    """Compare every file that a RECORD lists."""
    _, _, distributions = installed.of_user()
    aside: set[str] = set()
    for claim in claims:
        aside.update(claim.expect.get("aside", ()))
    evidence = compare(
        [distribution for distribution in distributions if distribution.location not in aside]
    )
    for claim in claims:
        yield claim.subject, evidence


def compare(distributions: Sequence[Distribution]) -> FilesEvidence:
    """Return what of these distributions' files is not as recorded."""
    recorded = recorded_hashes(distributions)
    measured = {
        path: as_record(digest) for path, digest in hashes(list(recorded), "sha256").items()
    }
    wrong: list[WrongFile] = []
    in_conflict: list[Conflict] = []
    for path, by_owner in recorded.items():
        now = measured[path]
        holds = sorted(
            owner for owner, digest in by_owner.items() if now and digest.rstrip("=") == now
        )
        others = sorted(by_owner.keys() - set(holds))
        if others:
            wrong.append(
                {"path": path, "owners": dict.fromkeys(others, "altered" if now else "missing")}
            )
        if len(set(by_owner.values())) > 1:
            in_conflict.append({"path": path, "owners": sorted(by_owner), "holds": holds})

    unowned = sorted(_unowned(distributions))
    without_record: list[WithoutRecord] = []
    for distribution in distributions:
        if distribution.entries is None:
            without_record.append({"name": distribution.name, "location": distribution.location})
    return {
        "distributions": len(distributions),
        "files": len(recorded),
        "wrong": wrong[:_MOST_LISTED],
        "in_conflict": in_conflict[:_MOST_LISTED],
        "unowned": unowned[:_MOST_LISTED],
        "unowned_count": len(unowned),
        "without_record": without_record,
    }


def recorded_hashes(distributions: Sequence[Distribution]) -> dict[str, dict[str, str]]:
    """Return path -> owner (`torch 2.7.1`) -> the hash in its RECORD.

    Files without one (RECORD itself) count as owned only, and so does bytecode: a few wheels bring and record some, and
    installers that compile replace it.
    """
    recorded: dict[str, dict[str, str]] = {}
    for distribution in distributions:
        owner = f"{distribution.name} {distribution.version}"
        for entry in distribution.entries or ():
            is_bytecode = "/__pycache__/" in entry.path and entry.path.endswith(".pyc")
            if entry.sha256 and not is_bytecode:
                recorded.setdefault(entry.path, {})[owner] = entry.sha256
    return recorded


def _unowned(distributions: Sequence[Distribution]) -> Iterator[str]:
    """Yield importable files and folders beside installed packages that no RECORD lists.

    Bytecode of an owned source is owned. A folder without any file is imported all the same (PEP 420): code that asks
    whether apex is there, say, takes one that an uninstallation left for the package.
    """
    owned: set[str] = set()
    locations: set[str] = set()
    for distribution in distributions:
        if distribution.entries is not None:
            locations.add(distribution.location)
            owned.update(entry.path for entry in distribution.entries)

    for location in locations:
        yield from (f"{folder}/" for folder in _folders_without_files(location))
        for folder, folders, files in os.walk(location):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in files:
                path = f"{folder}/{name}"
                if path not in owned and (name.endswith(_CODE) or ".so." in name):
                    yield path


def _folders_without_files(location: str) -> Iterator[str]:
    """Yield the importable folders of a folder of packages that hold nothing, or nothing but bytecode."""
    for entry in os.scandir(location):
        if entry.name.isidentifier() and entry.is_dir(follow_symlinks=False):
            files: list[str] = []
            for folder, _, names in os.walk(entry.path):
                if not folder.endswith("/__pycache__"):
                    files += names
            if entry.name != "__pycache__" and not files:
                yield entry.path


def size(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_size  # noqa: PTH116  40,000 times
    return 0


def hashes(paths: Sequence[str], kind: str) -> dict[str, str]:
    """Path -> hexadecimal hash; empty where there is no file that can be read. Some hundred files a process."""
    ordered = sorted(paths, key=size, reverse=True)
    count = len(ordered) // _FILES_A_TASK + 1
    # Portions of like weight, so that no core waits for the other at the end.
    tasks = [(kind, ordered[start::count]) for start in range(count)]
    return {path: digest for part in map_on_all_cores(_hash_some, tasks) for path, digest in part}


def _hash_some(task: tuple[str, Sequence[str]]) -> list[tuple[str, str]]:
    (kind, paths), buffer = task, memoryview(bytearray(_READ_BYTES))
    return [(path, _hash(path, kind, buffer)) for path in paths]


def _hash(path: str, kind: str, buffer: memoryview) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    try:
        file = os.open(
            path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
        )  # to open a FIFO is to wait for ever
        try:
            is_file = stat.S_ISREG(os.fstat(file).st_mode)
            while is_file and (count := os.readv(file, [buffer])):
                digest.update(buffer[:count])
        finally:
            os.close(file)
    except OSError:
        return ""
    return digest.hexdigest() if is_file else ""


def as_record(digest: str) -> str:
    """RECORD's form of a hexadecimal hash."""
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode()


def judge(_subject: str, expect: FilesExpect, evidence: FilesEvidence) -> Finding:
    """Name files that are altered, missing, of two owners or of none."""
    if not evidence["files"]:
        return failed("no distribution lists a single file")
    faults = []
    told = set()
    for conflict in evidence["in_conflict"]:
        told.add(conflict["path"])
        holds = (
            f"it holds {listed(conflict['holds'])}'s" if conflict["holds"] else "it holds neither's"
        )
        owners = " and ".join(conflict["owners"])
        faults.append(
            f"{conflict['path']} is claimed by {owners} with different contents ({holds})"
        )
    for file in evidence["wrong"]:
        if file["path"] not in told:
            states = " and ".join(sorted(set(file["owners"].values())))
            faults.append(f"{file['path']} of {listed(list(file['owners']))} is {states}")

    excused = [f"*/{pattern}" for pattern in expect["unowned"]]
    faults += [
        f"{path} belongs to no distribution"
        for path in evidence["unowned"]
        if not matches(path, excused)
    ]
    faults += count_unlisted(evidence, "unowned", "files belong to no distribution")
    for distribution in evidence["without_record"]:
        # Debian's packages bring none: dpkg has the sums of their files.
        if not distribution["location"].endswith("/dist-packages"):
            faults.append(
                f"{distribution['name']} in {distribution['location']} has no readable RECORD"
            )
    return conclude(
        faults,
        f"{evidence['files']} files of {evidence['distributions']} distributions are as recorded",
    )


CLAIMS = {"files": judge}
