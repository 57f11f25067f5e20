"""files: check that every file of a Python distribution is as its RECORD says.

A file that was changed runs code that nobody chose. Reported are altered and missing files, paths
that two distributions record with different contents, and importable files that no RECORD lists.
Each file is read once, on all cores.
"""

import base64
import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.environment.installed import Distribution
from validate.harness.forked import map_on_all_cores
from validate.judging import Finding, conclude, count_unlisted, failed, listed, matches
from validate.next_steps import BUILD_ANEW, take_out

SETTINGS = Settings(reads_files_only=True, starts_first=True)

_MOST_LISTED = 40
_READ_BYTES = 1 << 20
_FILES_A_TASK = 500
"""How many files one process reads before it gets others."""
_CODE_SUFFIXES = (".py", ".pyc", ".pth", ".so")


class _FilesExpect(TypedDict):
    unowned: Mapping[str, str]
    """Path pattern -> why such a file may belong to no distribution."""


class FilesExpect(_FilesExpect, total=False):
    """What a claim about files says."""

    aside: list[str]
    """Folders of sys.path that are left out: a package manager filled them, and no wheel."""


class WrongFile(TypedDict):
    """A file that is not as recorded."""

    path: str
    owners: dict[str, str]
    """Distribution that records it otherwise -> `altered` or `missing`."""


class Conflict(TypedDict):
    """A file that several distributions recorded with different contents."""

    path: str
    owners: list[str]
    holds: list[str]
    """Those of the owners whose content it has."""


class WithoutRecord(TypedDict):
    """A distribution whose RECORD is not there or can't be read."""

    name: str
    location: str


class FilesEvidence(TypedDict):
    """Files of all distributions, compared with their RECORDs. Lists of files are cut."""

    distributions: int
    files: int
    """How many files have a hash in a RECORD."""
    wrong: list[WrongFile]
    in_conflict: list[Conflict]
    unowned: list[str]
    """Importable files and folders that no RECORD lists."""
    unowned_count: int
    without_record: list[WithoutRecord]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, FilesEvidence]]:
    """Compare the files of installed packages with their RECORDs, which list files and hashes.

    Yields the subject of each claim with the same evidence. Folders of packages that a claim names
    as `aside` are left out.
    """
    _, _, distributions = installed.read_user_python()
    # `aside`: folders of sys.path that another package manager has filled.
    left_out: set[str] = set()
    for claim in claims:
        left_out.update(claim.expect.get("aside", ()))
    evidence = compare(
        [distribution for distribution in distributions if distribution.location not in left_out]
    )
    for claim in claims:
        yield claim.subject, evidence


def compare(distributions: Sequence[Distribution]) -> FilesEvidence:
    """Compare the files of installed packages with their RECORDs, which list files and hashes.

    Returned are files that are altered or missing (`wrong`), that several packages list with
    different hashes (`in_conflict`), or that none lists (`unowned`), and packages without a RECORD.
    Only the first of many are listed.
    """
    # Path -> package that lists it -> the hash in its RECORD.
    recorded = recorded_hashes(distributions)
    # Path -> hash of the file; empty if it can't be read.
    measured = hash_all(list(recorded), "sha256")
    wrong: list[WrongFile] = []
    in_conflict: list[Conflict] = []
    for path, hash_by_owner in recorded.items():
        measured_hash = to_record_hash(measured[path])
        # Packages whose RECORD has the file's hash, and packages whose RECORD has another one.
        holds = []
        others = []
        for owner, recorded_hash in sorted(hash_by_owner.items()):
            if measured_hash and recorded_hash == measured_hash:
                holds.append(owner)
            else:
                others.append(owner)

        if others:
            state = "altered" if measured_hash else "missing"
            wrong.append({"path": path, "owners": dict.fromkeys(others, state)})
        # Several packages have this path, with different contents.
        if len(set(hash_by_owner.values())) > 1:
            owners = sorted(hash_by_owner)
            in_conflict.append({"path": path, "owners": owners, "holds": holds})

    unowned = sorted(find_unowned(distributions))
    return {
        "distributions": len(distributions),
        "files": len(recorded),
        "wrong": wrong[:_MOST_LISTED],
        "in_conflict": in_conflict[:_MOST_LISTED],
        "unowned": unowned[:_MOST_LISTED],
        "unowned_count": len(unowned),
        "without_record": list(find_without_record(distributions)),
    }


def find_without_record(distributions: Sequence[Distribution]) -> Iterator[WithoutRecord]:
    """Yield the installed packages that have no RECORD, although they should have one."""
    for distribution in distributions:
        location = distribution.location
        # Files of a source tree were not installed, so nobody recorded them.
        lacks_record = distribution.entries is None and not is_source_tree(location)
        if lacks_record and distribution.readable:
            yield {"name": distribution.name, "location": location}


def is_source_tree(folder: str) -> bool:
    """Return whether a folder of sys.path is a project's source, as of an editable installation.

    Its metadata (`.egg-info`) has no RECORD, because its files were not installed. The project's
    settings stand in that folder, or in the one above it (the layout `src/`).
    """
    for name in ("pyproject.toml", "setup.py", "setup.cfg"):
        if Path(folder, name).is_file() or Path(folder).parent.joinpath(name).is_file():
            return True
    return False


def recorded_hashes(distributions: Sequence[Distribution]) -> dict[str, dict[str, str]]:
    """Return for each path its owners (`torch 2.7.1`), each with the hash in its RECORD.

    RECORD is the list of files that an installed package has. Hashes are SHA-256, in base64.
    Files without a hash, such as RECORD itself, are left out. So is bytecode: a few wheels bring
    and record some, and installers that compile replace it.
    """
    recorded: dict[str, dict[str, str]] = {}
    for distribution in distributions:
        owner = f"{distribution.name} {distribution.version}"
        for entry in distribution.entries or ():
            is_bytecode = "/__pycache__/" in entry.path and entry.path.endswith(".pyc")
            if entry.sha256 and not is_bytecode:
                recorded.setdefault(entry.path, {})[owner] = entry.unpadded_sha256
    return recorded


def find_unowned(distributions: Sequence[Distribution]) -> Iterator[str]:
    """Yield importable files and folders beside installed packages that no RECORD lists.

    Only folders of packages with a RECORD are looked at. If this user may not read one of the
    RECORDs in a folder, the folder is left out: that RECORD may list any file. Bytecode in
    `__pycache__` belongs to its source.
    """
    owned: set[str] = set()
    locations: set[str] = set()
    for distribution in distributions:
        if distribution.entries is not None:
            locations.add(distribution.location)
            owned.update(entry.path for entry in distribution.entries)
    unreadable = {each.location for each in distributions if not each.readable}

    for location in locations - unreadable:
        for folder in find_empty_packages(location):
            yield f"{folder}/"
        for folder, subfolders, names in os.walk(location):
            # os.walk enters only folders that are in this list.
            subfolders[:] = [name for name in subfolders if name != "__pycache__"]
            for name in names:
                path = f"{folder}/{name}"
                # `.so.` is in the names of libraries with a version: libgomp.so.1.
                is_code = name.endswith(_CODE_SUFFIXES) or ".so." in name
                if is_code and path not in owned:
                    yield path


def find_empty_packages(location: str) -> Iterator[str]:
    """Yield the folders with an importable name that hold no file, or nothing but bytecode.

    `location` is the folder of packages (site-packages) that they lie in. An uninstallation may
    leave such a folder. Python imports it as a namespace package (PEP 420), so code that asks
    whether apex is installed, for example, takes it for the package.
    """
    for entry in os.scandir(location):
        if not entry.name.isidentifier() or not entry.is_dir(follow_symlinks=False):
            continue
        if entry.name == "__pycache__":
            continue
        files: list[str] = []
        for folder, _, names in os.walk(entry.path):
            if not folder.endswith("/__pycache__"):
                files += names
        if not files:
            yield entry.path


def file_size(path: str) -> int:
    """Return the bytes of a file; 0 if it can't be read."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_size  # noqa: PTH116  40,000 times
    return 0


def hash_all(paths: Sequence[str], kind: str) -> dict[str, str]:
    """Return the hash of each file in hexadecimal digits, computed on all cores.

    `kind` is the kind of hash, such as `sha256`. The hash is empty if there is no such file, or it
    can't be read.
    """
    ordered = sorted(paths, key=file_size, reverse=True)
    count = len(ordered) // _FILES_A_TASK + 1
    # Deal the files out like cards: task 0 of 3 gets the files 0, 3, 6 and so on. So each task gets
    # large and small files, and all tasks take about as long.
    tasks = [(kind, ordered[start::count]) for start in range(count)]
    digests: dict[str, str] = {}
    for part in map_on_all_cores(hash_files, tasks):
        digests.update(part)
    return digests


def hash_files(task: tuple[str, Sequence[str]]) -> dict[str, str]:
    """Return the hexadecimal hash of each file by path. The task is a kind of hash, and paths."""
    kind, paths = task
    buffer = memoryview(bytearray(_READ_BYTES))
    return {path: hash_file(path, kind, buffer) for path in paths}


def hash_file(path: str, kind: str, buffer: memoryview) -> str:
    """Return the hexadecimal hash of a file; empty if it is no plain file or can't be read.

    `kind` is a name that hashlib knows, such as `sha256`. The file is read through `buffer`, whose
    content is overwritten: one buffer for 40,000 files saves time.
    """
    digest = hashlib.new(kind, usedforsecurity=False)
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for ever.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return ""
            while count := os.readv(file, [buffer]):
                digest.update(buffer[:count])
        finally:
            os.close(file)
    except OSError:
        return ""
    return digest.hexdigest()


def to_record_hash(digest: str) -> str:
    """Return a hexadecimal hash as RECORD writes it: URL-safe base64 without padding.

    An empty text stays empty.
    """
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode()


def judge(_subject: str, expect: FilesExpect, evidence: FilesEvidence) -> Finding:
    """Pass if all files of installed packages are as their RECORDs list them, with their hashes.

    Fails with files that are altered or missing, that two packages list with different hashes, or
    that no package lists; and with packages that have no RECORD. A file that no package lists is
    allowed if its path ends with one of the patterns in `expect["unowned"]`.
    """
    if not evidence["files"]:
        return failed(
            "no installed Python package lists a single file in its RECORD",
            "take the step that removes `*.dist-info/RECORD` files or the packages themselves "
            "(`docker run --rm IMAGE python -m pip list` shows those that are left) out of your "
            f"Dockerfile, and build the image again; if you have no such step, {BUILD_ANEW}",
        )
    faults = list(describe_changed_files(evidence))
    excused = [f"*/{pattern}" for pattern in expect["unowned"]]
    for path in evidence["unowned"]:
        if not matches(path, excused):
            faults.append(f"{path} belongs to no installed Python package")
    # The evidence lists only the first files, and counts all: add a fault for the others.
    faults += count_unlisted(evidence, "unowned", "files belong to no installed Python package")
    for distribution in evidence["without_record"]:
        # Debian's Python packages have no RECORD: dpkg has the sums of their files.
        if not distribution["location"].endswith("/dist-packages"):
            name = f"{distribution['name']} in {distribution['location']}"
            faults.append(f"{name} has no readable RECORD")
    good = f"{evidence['files']} files of {evidence['distributions']} distributions are as recorded"
    return conclude(faults, good)


def describe_changed_files(evidence: FilesEvidence) -> Iterator[str]:
    """Yield a sentence for each file that two distributions record differently, or that changed.

    A file that changed is altered or missing. One of two distributions is not reported twice.
    """
    reported = set()
    for conflict in evidence["in_conflict"]:
        reported.add(conflict["path"])
        # `conflict["holds"]` are the distributions whose content the file has: none or some.
        holds = "the file is of neither"
        if conflict["holds"]:
            holds = f"the file is that of {listed(conflict['holds'])}"
        owners = " and ".join(conflict["owners"])
        yield f"{conflict['path']} is claimed by {owners} with different contents ({holds})"

    for file in evidence["wrong"]:
        if file["path"] not in reported:
            # `owners` is distribution -> state: `altered` or `missing`.
            states = " and ".join(sorted(set(file["owners"].values())))
            yield f"{file['path']} of {listed(list(file['owners']))} is {states}"


CLAIMS = {"files": judge}
NEXT_STEPS = {
    "files": {
        " is claimed by ": "two packages bring this file, and the one that was installed last has "
        f"overwritten it: {take_out('the step that brings the one that nobody needs')}",
        "belong": take_out("the step that brings these files"),
        "": "install the package that the reason names again (`RUN pip install --force-reinstall "
        "--no-deps PACKAGE==VERSION`) below all steps of your Dockerfile that change its files, "
        "and build the image again; if your Dockerfile changes none of them, "
        f"{BUILD_ANEW}",
    }
}
