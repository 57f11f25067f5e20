"""bytecode: check that each `.pyc` file is one that Python takes, and belongs to its source.

Python takes bytecode by its header (PEP 552): the number of its release, and the time and size of
its source, or the hash of that. There are two kinds of fault:

- A void file costs a compilation at each start. A `touch`, a COPY without times or an unpacked
  archive leaves it.
- A stale file runs old code. "Unchecked" bytecode becomes so when its source is edited.

A file that was cut short ends its import with EOFError. If our own Python, which reads the files,
is of the image's release, it reads their code, too (11 s for 28,500 files of 497 MB on one core).
Code of another release can't be read: then only the header is looked at, and whether anything
follows it. Nothing is compiled and nothing is run.
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
from validate.next_steps import BUILD_ANEW

SETTINGS = Settings(reads_files_only=True, shared_reads=(read_image_paths,), run_as=RunAs.ROOT)

_MOST_LISTED = 40
_HEADER = struct.Struct("<II8s")
"""Magic number, flags, and either the source's time and size or its hash."""
_MAGIC_NUMBERS = {"3.10": 3439, "3.11": 3495, "3.12": 3531, "3.13": 3571, "3.14": 3627}
"""Python's release -> the number that its bytecode begins with (CPython, pycore_magic_number.h)."""
_CR_LF = 0x0A0D << 16
"""The other half of the magic number: line ends, which a copy as text changes."""
_OWN_MAGIC = int.from_bytes(importlib.util.MAGIC_NUMBER, "little")
"""The magic number of the Python that runs this check. It reads code of its own release only."""
_BY_TIME = 0
"""Flags of bytecode that has its source's time and size, and not its hash."""
_UNSIGNED_32_BITS = 0xFFFFFFFF
"""Of a source's time and size, a header has the lower 32 bits (PEP 552)."""
_DEBIANS_PACKAGES = "/usr/lib/python3"
_OUR_FILES = "/opt/truetag"
"""The folder of our own copy of the suite."""


class Measured(TypedDict):
    """Bytecode of the image's Python, and what is wrong with it."""

    python: str
    """Its release: `3.11`."""
    files: int
    """How many `.pyc` files were looked at."""
    faults: dict[str, str]
    """Path -> what is wrong. The list is cut."""
    faults_count: int


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Find `.pyc` files that the image's Python would not use, or would use in place of the source.

    Each is compared with its source: its header must have Python's magic number and the source's
    time. The evidence is the same for all claims.
    """
    _, start, _ = installed.read_user_python()
    paths = read_image_paths().facts
    # The bytecode of six.py is __pycache__/six.cpython-311.pyc.
    tag = f".cpython-{start.version.replace('.', '')}."
    folders = [*start.path, _DEBIANS_PACKAGES, _OUR_FILES]
    prefixes = tuple(f"{os.path.realpath(folder)}/" for folder in folders)

    files = 0
    faults: dict[str, str] = {}
    for path in sorted(paths):
        # This is empty for a file that is not bytecode.
        source = source_of_bytecode(path)
        # Python never looks at bytecode of another release, nor at one whose source is gone.
        if tag not in path or source not in paths or not path.startswith(prefixes):
            continue
        files += 1
        fault = find_fault(path, source, paths, start.version)
        if fault:
            faults[path] = fault

    evidence: Measured = {
        "python": start.version,
        "files": files,
        "faults": dict(list(faults.items())[:_MOST_LISTED]),
        "faults_count": len(faults),
    }
    for claim in claims:
        yield claim.subject, evidence


def find_fault(path: str, source: str, paths: Mapping[str, os.stat_result], python: str) -> str:
    """Return what is wrong with the `.pyc` file at `path`, such as "cut short"; empty: nothing.

    `source` is the path of its source. `paths` is path -> what lstat says of it, with `source`
    among them. `python` is the release that must be able to read the bytecode: `3.11`. Raises
    OSError if the source can't be read.
    """
    try:
        content = memoryview(Path(path).read_bytes())
        # `flags` say what `source_stamp` is: time and size of the source, or its hash.
        magic, flags, source_stamp = _HEADER.unpack(content[: _HEADER.size])
    except (OSError, struct.error):
        return "cut short"
    if not has_whole_code(content[_HEADER.size :], magic):
        return "cut short"

    # The magic number of a release is a number and CR LF. A release that is not in the table can't
    # be compared.
    number = _MAGIC_NUMBERS.get(python)
    if number and magic != _CR_LF + number:
        return f"not of Python {python}"

    if flags == _BY_TIME:
        facts = paths[source]
        if is_link(facts):
            facts = os.stat(source)  # noqa: PTH116
        time = int(facts.st_mtime) & _UNSIGNED_32_BITS
        size = facts.st_size & _UNSIGNED_32_BITS
        is_current = source_stamp == struct.pack("<II", time, size)
        return "" if is_current else "ignored by Python, as its source has another time or size"

    # The header has a hash of the source. Python itself does not compare an "unchecked" one.
    is_current = source_stamp == _imp.source_hash(magic, Path(source).read_bytes())
    return "" if is_current else "stale: it was made of another source"


def has_whole_code(code: memoryview, magic: int) -> bool:
    """Return whether the code of a `.pyc` file is complete.

    `code` is all that follows the header. `magic` is the number of the Python that wrote it.
    """
    # Our Python can't read code of another release. Of such code, only see that it is not empty.
    if magic != _OWN_MAGIC:
        return bool(code)
    try:
        marshal.loads(code)
    except (EOFError, ValueError, TypeError):
        return False
    return True


def judge(_subject: str, _expect: object, evidence: Measured) -> Finding:
    """Pass if the image has bytecode that its Python can use, all of it made from its sources."""
    if not evidence["files"]:
        return failed(
            "the image has no bytecode (.pyc files), so each process compiles what it imports",
            "take the step that removes `__pycache__` folders out of your Dockerfile, or add `RUN "
            "python -m compileall -q /opt/venv` below that step, and build the image again; if "
            f"you have no such step, {BUILD_ANEW}",
        )
    # If there are faults that the evidence does not list, the number says most.
    faults = count_unlisted(evidence, "faults", ".pyc files are cut short or not of their sources")
    for path, fault in evidence["faults"].items():
        faults.append(f"the bytecode {path} is {fault}")
    good = f"{evidence['files']} files of bytecode are of Python {evidence['python']}"
    return conclude(faults, f"{good} and fit their sources")


CLAIMS = {"bytecode": judge}
NEXT_STEPS = {
    "bytecode": "add `RUN python -m compileall -q -f FOLDER` below the last step of your "
    "Dockerfile that touches Python files (a later `touch` or COPY would spoil it again), and "
    "build the image again; FOLDER is the one above `__pycache__`, and a path without a slash "
    "at its start lies in `/opt/venv/lib/python3.*/site-packages`; if no step touches any, "
    f"{BUILD_ANEW}"
}
