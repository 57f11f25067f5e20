"""bytecode/headers: a `.pyc` file that is void costs a compilation at each start; one that is stale runs old code.

Python takes bytecode by its header (PEP 552): the number of its release, and its source's time and size, or its hash.
Void is what a `touch`, a COPY without times or an unpacked archive leaves; stale is what "unchecked" bytecode becomes
when its source is edited. Nothing is compiled and nothing is run.

A file that was cut short ends its import with EOFError. Where the reader's own Python is of the image's release, the
code of each file is read, too (11 s for 28,500 files of 497 MB on one core). Another release can't read it: there the
header and whether anything follows it are looked at, and `imports` is left to fail.
"""

import _imp
import importlib.util
import marshal
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from validate.checks import RunAs, Settings
from validate.claims import Claim
from validate.environment import installed
from validate.environment.image_paths import is_link, read_image_paths, source_of_bytecode
from validate.judging import Finding, conclude, count_unlisted, failed

SETTINGS = Settings(reads_files_only=True, shared_reads=(read_image_paths,), run_as=RunAs.ROOT)

_MOST_LISTED = 40
_HEADER = struct.Struct("<II8s")
"""Magic number, flags, and either the source's time and size or its hash."""
_MAGIC_NUMBERS = {"3.10": 3439, "3.11": 3495, "3.12": 3531, "3.13": 3571, "3.14": 3627}
"""Python's release -> the number that its bytecode begins with (CPython, pycore_magic_number.h)."""
_CR_LF = 0x0A0D << 16
"""The other half of the magic number, by which copying as text shows."""
_OWN_MAGIC = int.from_bytes(importlib.util.MAGIC_NUMBER, "little")
"""Of the Python that reads: it can read code of its own release only."""
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
    """Return what is wrong with a `.pyc` file; empty: nothing."""
    try:
        content = memoryview(Path(path).read_bytes())
        magic, flags, written = _HEADER.unpack(content[: _HEADER.size])
    except (OSError, struct.error):
        return "cut short"
    if not has_whole_code(content[_HEADER.size :], magic):
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


def has_whole_code(code: memoryview, magic: int) -> bool:
    """Return whether what follows a header can be read; of another release's code, whether there is any."""
    if magic != _OWN_MAGIC:
        return bool(code)
    try:
        marshal.loads(code)
    except (EOFError, ValueError, TypeError):
        return False
    return True


def judge(_subject: str, _expect: object, evidence: Measured) -> Finding:
    """Name bytecode that Python would not take, or that is not of the source beside it."""
    if not evidence["files"]:
        return failed("there is no bytecode: each process compiles what it imports")
    faults = [f"{path} is {fault}" for path, fault in evidence["faults"].items()]
    faults += count_unlisted(evidence, "faults", "files of bytecode are not their sources'")
    good = f"{evidence['files']} files of bytecode are of Python {evidence['python']} and fit their sources"
    return conclude(faults, good)


CLAIMS = {"bytecode": judge}
