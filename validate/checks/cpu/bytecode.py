"""C12: bytecode of the image, held against its source compiled again. Python reads no source whose bytecode fits it.

All folders of the Python path, and the image's own copy of the suite. Bytecode counts by its content, whatever its
header says of the source: the header decides when it is used, and that can be set.
"""

from __future__ import annotations

import hashlib
import marshal
import multiprocessing
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

from validate.claims import Claim
from validate.environment import installed, user_environment
from validate.environment.installed import Distribution
from validate.judging import Finding, conclude, failed


class BytecodeExpect(TypedDict):
    known: dict[str, list[str]]
    """Distribution -> digests of its bytecode that was compiled again and found right before, of the same sources."""


class BytecodeEvidence(TypedDict):
    files: int
    compiled: int
    """How many of them were compiled again."""
    digests: dict[str, str]
    """Distribution -> the digest of its bytecode, where none of it is wrong."""
    wrong: dict[str, str]
    """Path -> what is wrong."""
    wrong_count: int


_NAME = re.compile(r"(?P<source>[^/]+)\.(?P<tag>[a-z]+-\d+)(\.opt-(?P<optimised>\w+))?\.pyc")
_HEADER_BYTES = 16
_FILES_A_TASK = 50
_MOST_LISTED = 40
_OWN = "/opt/truetag"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BytecodeEvidence]]:
    given = user_environment.recorded()
    start = user_environment.start(given)
    folders = [entry for entry in start.path if entry]
    found = installed.distributions(folders)
    for claim in claims:
        yield claim.subject, compare([*folders, _OWN], found, cast(BytecodeExpect, claim.expect)["known"])


def compare(
    folders: Sequence[str], distributions: Sequence[Distribution], known: Mapping[str, Sequence[str]]
) -> BytecodeEvidence:
    """All bytecode below these folders. That of a distribution whose digest is known is not compiled again."""
    paths = sorted({path for folder in folders for path in _bytecode(folder)})
    # Distribution -> the bytecode of its sources, of those that it alone has.
    owners: dict[str, list[str]] = {}
    for one in distributions:
        for entry in one.entries or ():
            if entry.path.endswith(".py"):
                owners.setdefault(entry.path, []).append(one.name)
    owned: dict[str, list[str]] = {}
    for path in paths:
        names = owners.get(_source(path), [])
        if len(names) == 1:
            owned.setdefault(names[0], []).append(path)
    digests = {name: _digest(some) for name, some in owned.items()}
    right = {path for name, some in owned.items() if digests[name] in known.get(name, ()) for path in some}
    left = [path for path in paths if path not in right]
    wrong = _wrong(left)
    return {
        "files": len(paths),
        "compiled": len(left),
        "digests": {name: digest for name, digest in digests.items() if wrong.keys().isdisjoint(owned[name])},
        "wrong": dict(sorted(wrong.items())[:_MOST_LISTED]),
        "wrong_count": len(wrong),
    }


def _digest(paths: Sequence[str]) -> str:
    """Of the bytecode in these files, with their paths: bytecode holds its source's."""
    digest = hashlib.sha256()
    for path in paths:
        body = hashlib.sha256(Path(path).read_bytes()[_HEADER_BYTES:]).hexdigest()
        digest.update(f"{path}\0{body}\n".encode())
    return digest.hexdigest()


def _wrong(paths: Sequence[str]) -> dict[str, str]:
    """Path -> what is wrong with it, on all cores."""
    tasks = [paths[start : start + _FILES_A_TASK] for start in range(0, len(paths), _FILES_A_TASK)]
    found: dict[str, str] = {}
    if tasks:
        with multiprocessing.get_context("fork").Pool(min(len(os.sched_getaffinity(0)), len(tasks))) as pool:
            for part in pool.imap_unordered(_states, tasks):
                found.update(part)
    return {path: state for path, state in found.items() if state}


def _source(path: str) -> str:
    """The source that bytecode is of; empty for a file that is named otherwise."""
    folder, _, name = path.rpartition("/__pycache__/")
    found = _NAME.fullmatch(name)
    return f"{folder}/{found['source']}.py" if found else ""


def _bytecode(top: str) -> Iterator[str]:
    for folder, _, names in os.walk(os.path.realpath(top)):
        if folder.endswith("/__pycache__"):
            yield from (f"{folder}/{name}" for name in names if name.endswith(".pyc"))


def _states(paths: Sequence[str]) -> Mapping[str, str]:
    """Path -> what is wrong with it; empty: nothing."""
    warnings.simplefilter("ignore")  # of old code
    return {path: _state(path) for path in paths}


def _state(path: str) -> str:
    source, found = _source(path), _NAME.fullmatch(path.rpartition("/")[2])
    if not found:
        return "no name of bytecode"
    try:
        content, held = Path(source).read_bytes(), Path(path).read_bytes()[_HEADER_BYTES:]
    except OSError:
        return "without a source"
    optimised = int(found["optimised"]) if (found["optimised"] or "").isdigit() else 0
    try:
        made = compile(content, source, "exec", dont_inherit=True, optimize=optimised)
    except (SyntaxError, ValueError):
        return "not compiled from its source, which can't be compiled"
    if marshal.dumps(made) == held or _is_same(made, held):
        return ""
    return "not what its source compiles to"


def _is_same(made: object, held: bytes) -> bool:
    """Equal code may be written in other bytes: constants that are shared, or not."""
    try:
        return bool(marshal.loads(held) == made)
    except (ValueError, EOFError, TypeError):
        return False


def judge(_subject: str, _expect: BytecodeExpect, evidence: BytecodeEvidence) -> Finding:
    """C12."""
    if not evidence["files"]:
        return failed("there is no bytecode: each process compiles what it imports")
    faults = [f"{path} is {state}" for path, state in evidence["wrong"].items()]
    if hidden := evidence["wrong_count"] - len(evidence["wrong"]):
        faults.append(f"{hidden} more files of bytecode are not their sources'")
    again = f"{evidence['compiled']} compiled again, all of {len(evidence['digests'])} distributions right"
    return conclude(faults, f"{evidence['files']} files of bytecode are what their sources compile to ({again})")


CLAIMS = {"C12": judge}
