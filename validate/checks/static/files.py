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
from typing import Any

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.environment.installed import Distribution
from validate.harness.forked import on_all_cores
from validate.judging import Finding, conclude, cut, failed, listed, matches

SETTINGS = Settings(reads_files_only=True, starts_first=True)

_MOST_LISTED = 40
_READ_BYTES = 1 << 20
_FILES_A_TASK = 500
_CODE = (".py", ".pyc", ".pth", ".so")


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    _, _, everything = installed.of_user()
    aside = {folder for claim in claims for folder in claim.expect.get("aside", ())}
    evidence = _compare([one for one in everything if one.location not in aside])
    for claim in claims:
        yield claim.subject, evidence


def _compare(everything: Sequence[Distribution]) -> Mapping[str, Any]:
    # Path to the hash each owner recorded. Files recorded without a hash (RECORD itself) only count as owned, and so
    # does bytecode: a few wheels ship and record some, and installers that compile replace it.
    expected: dict[str, dict[str, str]] = {}
    for distribution in everything:
        for entry in distribution.entries or ():
            if entry.sha256 and not ("/__pycache__/" in entry.path and entry.path.endswith(".pyc")):
                expected.setdefault(entry.path, {})[f"{distribution.name} {distribution.version}"] = entry.sha256
    measured = {path: as_record(digest) for path, digest in hashes(list(expected), "sha256").items()}
    wrong: list[Mapping[str, Any]] = []
    in_conflict: list[Mapping[str, Any]] = []
    for path, recorded in expected.items():
        now = measured[path]
        holds = sorted(name for name, digest in recorded.items() if now and digest.rstrip("=") == now)
        if others := sorted(recorded.keys() - set(holds)):
            wrong.append({"path": path, "owners": dict.fromkeys(others, "altered" if now else "missing")})
        if len(set(recorded.values())) > 1:
            in_conflict.append({"path": path, "owners": sorted(recorded), "holds": holds})
    unowned = sorted(_unowned(everything, expected))
    return {
        "distributions": len(everything),
        "files": len(expected),
        "wrong": wrong[:_MOST_LISTED],
        "in_conflict": in_conflict[:_MOST_LISTED],
        "unowned": unowned[:_MOST_LISTED],
        "unowned_count": len(unowned),
        "without_record": [{"name": one.name, "location": one.location} for one in everything if one.entries is None],
    }


def _unowned(everything: Sequence[Distribution], expected: Mapping[str, object]) -> Iterator[str]:
    """Yield importable files and folders beside installed packages that no RECORD lists.

    Bytecode of an owned source is owned. A folder without any file is imported all the same (PEP 420): code that asks
    whether apex is there, say, takes one that an uninstallation left for the package.
    """
    listed = {entry.path for distribution in everything for entry in distribution.entries or ()}
    for location in {distribution.location for distribution in everything if distribution.entries is not None}:
        yield from (f"{folder}/" for folder in _folders_without_files(location))
        for folder, folders, files in os.walk(location):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in files:
                path = f"{folder}/{name}"
                if path not in listed and (name.endswith(_CODE) or ".so." in name):
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
    return {path: digest for part in on_all_cores(_hash_some, tasks) for path, digest in part}


def _hash_some(task: tuple[str, Sequence[str]]) -> list[tuple[str, str]]:
    (kind, paths), buffer = task, memoryview(bytearray(_READ_BYTES))
    return [(path, _hash(path, kind, buffer)) for path in paths]


def _hash(path: str, kind: str, buffer: memoryview) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)  # to open a FIFO is to wait for ever
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


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """files. expect: {unowned: {path pattern: why it may be there}}, and of anybody's image {aside: folders of sys.path
    that no wheel filled: their files are a package manager's, and not compared}.

    evidence (the first three lists are cut, each with its `_count`): {distributions, files, bytes, wrong: [{path,
    owners: {distribution: altered or missing}}], in_conflict: [{path, owners, holds: those whose content it has}],
    unowned, without_record: [{name, location}], shared_alike_count}.
    """
    if not evidence["files"]:
        return failed("no distribution lists a single file")
    faults = []
    for one in evidence["in_conflict"]:
        holds = f"it holds {listed(one['holds'])}'s" if one["holds"] else "it holds neither's"
        faults.append(f"{one['path']} is claimed by {' and '.join(one['owners'])} with different contents ({holds})")
    told = {one["path"] for one in evidence["in_conflict"]}
    for one in evidence["wrong"]:
        if one["path"] not in told:
            states = " and ".join(sorted(set(one["owners"].values())))
            faults.append(f"{one['path']} of {listed(list(one['owners']))} is {states}")
    excused = [f"*/{pattern}" for pattern in expect["unowned"]]
    faults += [f"{path} belongs to no distribution" for path in evidence["unowned"] if not matches(path, excused)]
    faults += cut(evidence, "unowned", "files belong to no distribution")
    for one in evidence["without_record"]:
        if not one["location"].endswith("/dist-packages"):
            faults.append(f"{one['name']} in {one['location']} has no readable RECORD")
    return conclude(faults, f"{evidence['files']} files of {evidence['distributions']} distributions are as recorded")


CLAIMS = {"files": judge}
