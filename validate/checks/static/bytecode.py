"""bytecode/headers: a `.pyc` file that is void costs a compilation at each start; one that is stale runs old code.

Python takes bytecode by its header (PEP 552): the number of its release, and its source's time and size, or its hash.
Void is what a `touch`, a COPY without times or an unpacked archive leaves; stale is what "unchecked" bytecode becomes
when its source is edited. Nothing is compiled and nothing is run.
"""

import _imp
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from validate.checks import RunAs, Settings
from validate.claims import Claim
from validate.environment import installed
from validate.environment.image_paths import is_link, read_image_paths, source_of_bytecode
from validate.judging import Finding, conclude, cut, failed

SETTINGS = Settings(reads_files_only=True, shared_reads=(read_image_paths,), run_as=RunAs.ROOT)

_MOST_LISTED = 40
_HEADER = struct.Struct("<II8s")
"""Magic number, flags, and either the source's time and size or its hash."""
_MAGIC_NUMBERS = {"3.10": 3439, "3.11": 3495, "3.12": 3531, "3.13": 3571, "3.14": 3627}
"""Python's release -> the number that its bytecode begins with (CPython, pycore_magic_number.h)."""
_CR_LF = 0x0A0D << 16
"""The other half of the magic number, by which copying as text shows."""
_BY_TIME = 0
_DEBIANS = "/usr/lib/python3"
_OURS = "/opt/truetag"


class Measured(TypedDict):
    """Bytecode of the image's Python, and what is wrong with its headers."""

    python: str
    files: int
    faults: dict[str, str]
    """Path -> what is wrong."""
    faults_count: int


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Compare the header of each `.pyc` of this Python with its source."""
    _, start, _ = installed.of_user()
    paths = read_image_paths().facts
    tag = f".cpython-{start.version.replace('.', '')}."
    folders = [*start.path, _DEBIANS, _OURS]
    below = tuple(f"{os.path.realpath(folder)}/" for folder in folders)

    files = 0
    faults = {}
    for path in sorted(paths):
        source = source_of_bytecode(path)
        # Python never looks at bytecode of another release, nor at one whose source is gone.
        if not source or tag not in path or not path.startswith(below) or source not in paths:
            continue
        files += 1
        fault = find_fault(path, source, paths, start.version)
        if fault:
            faults[path] = fault

    shown = dict(list(faults.items())[:_MOST_LISTED])
    for claim in claims:
        yield (
            claim.subject,
            {
                "python": start.version,
                "files": files,
                "faults": shown,
                "faults_count": len(faults),
            },
        )


def find_fault(path: str, source: str, paths: Mapping[str, os.stat_result], python: str) -> str:
    """Return what is wrong with the header of a `.pyc` file; empty: nothing."""
    try:
        with open(path, "rb", buffering=0) as stream:  # noqa: PTH123  9,000 times
            magic, flags, written = _HEADER.unpack(stream.read(_HEADER.size))
            has_code = bool(stream.read(1))
    except (OSError, struct.error):
        return "cut short"
    if not has_code:
        return "cut short"

    known = _MAGIC_NUMBERS.get(python)
    if known and magic != _CR_LF + known:
        return f"not of Python {python}"

    if flags == _BY_TIME:
        facts = paths[source]
        if is_link(facts):
            facts = os.stat(source)  # noqa: PTH116
        expected = struct.pack("<II", int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)
        return "" if written == expected else "void: its source has another time or size"

    # Made with a hash of the source. With "unchecked" hashes Python itself never compares.
    expected = _imp.source_hash(magic, Path(source).read_bytes())
    return "" if written == expected else "stale: it was made of another source"


def judge(_subject: str, _expect: object, evidence: Measured) -> Finding:
    """Name bytecode that Python would not take, or that is not of the source beside it."""
    if not evidence["files"]:
        return failed("there is no bytecode: each process compiles what it imports")
    faults = [f"{path} is {fault}" for path, fault in evidence["faults"].items()]
    faults += cut(evidence, "faults", "files of bytecode are not their sources'")
    good = f"{evidence['files']} files of bytecode are of Python {evidence['python']} and fit their sources"
    return conclude(faults, good)


CLAIMS = {"bytecode": judge}
