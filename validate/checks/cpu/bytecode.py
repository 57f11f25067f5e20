"""bytecode: bytecode of the image, held against its source compiled again. Python reads no source whose bytecode fits
it.

All folders of the Python path, Debian's others, and the image's own copy of the suite. Bytecode counts by its content,
whatever its header says of the source: the header decides when it is used, and that can be set.

The Python that compiles is the image's own, as no other of its release need be here. It reads sources alone, which
`files` and `origin` hold, as they do its program: bytecode that lies has no part in what is said of it."""

import hashlib
import io
import marshal
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.environment.installed import Distribution
from validate.harness.forked import on_all_cores
from validate.judging import Finding, conclude, cut, failed

SETTINGS = Settings(ignores_bytecode=True)

_NAME = re.compile(r"(?P<source>[^/]+)\.(?P<tag>[a-z]+-\d+)(\.opt-(?P<optimised>\w+))?\.pyc")
_HEADER_BYTES = 16
_MOST_LISTED = 40
_SIZES = {**dict.fromkeys("cNTF.", 0), ":": 3, "i": 4, "g": 8, "y": 16}
"""Kinds of values that tell no size of their own (CPython, Python/marshal.c)."""
_BESIDE = ("/opt/truetag", "/usr/lib/python3", "/usr/share")
"""The image's copy of the suite; where scripts of Debian's packages have their modules."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    _, start, found = installed.of_user()
    for claim in claims:
        yield claim.subject, compare([*start.path, *_BESIDE], found, claim.expect["known"])


def compare(
    folders: Sequence[str], distributions: Sequence[Distribution], known: Mapping[str, Sequence[str]]
) -> Mapping[str, Any]:
    """All bytecode below these folders. That of a distribution whose digest is known is not compiled again."""
    walked = (found for top in folders for found in os.walk(os.path.realpath(top)) if found[0].endswith("/__pycache__"))
    paths = sorted({f"{folder}/{name}" for folder, _, names in walked for name in names if name.endswith(".pyc")})
    # Distribution -> the bytecode of its sources, of those that it alone has.
    owners = installed.owners(distributions)
    owned: dict[str, list[str]] = {}
    for path in paths:
        if len(own := owners.get(_source(path), [])) == 1:
            owned.setdefault(own[0].name, []).append(path)
    digests = {}
    for name, some in owned.items():
        # With their paths: bytecode holds its source's.
        bodies = (hashlib.sha256(Path(path).read_bytes()[_HEADER_BYTES:]).hexdigest() for path in some)
        lines = "".join(f"{path}\0{body}\n" for path, body in zip(some, bodies, strict=True))
        digests[name] = hashlib.sha256(lines.encode()).hexdigest()
    right = {path for name, some in owned.items() if digests[name] in known.get(name, ()) for path in some}
    left = [path for path in paths if path not in right]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old code
        wrong = {path: state for path, state in on_all_cores(_state, left, chunk=50) if state}
    return {
        "files": len(paths),
        "compiled": len(left),
        "digests": {name: digest for name, digest in digests.items() if wrong.keys().isdisjoint(owned[name])},
        "wrong": dict(sorted(wrong.items())[:_MOST_LISTED]),
        "wrong_count": len(wrong),
    }


def _source(path: str) -> str:
    """The source that bytecode is of; empty for a file that is named otherwise."""
    folder, _, name = path.rpartition("/__pycache__/")
    found = _NAME.fullmatch(name)
    return f"{folder}/{found['source']}.py" if found else ""


def _state(path: str) -> tuple[str, str]:
    """The path, and what is wrong with the bytecode there; empty: nothing."""
    source, found = _source(path), _NAME.fullmatch(path.rpartition("/")[2])
    if not found:
        return path, "no name of bytecode"
    try:
        content, held = Path(source).read_bytes(), Path(path).read_bytes()[_HEADER_BYTES:]
    except OSError:
        return path, "without a source"
    optimised = int(found["optimised"]) if (found["optimised"] or "").isdigit() else 0
    try:
        made = compile(content, source, "exec", dont_inherit=True, optimize=optimised)
    except (SyntaxError, ValueError):
        return path, "not compiled from its source, which can't be compiled"
    body = marshal.dumps(made)
    try:
        # The same code may be written in other bytes: values that are shared, or not.
        same = body == held or _written(body) == _written(held)
    except (LookupError, ValueError, MemoryError, RecursionError):
        same = False
    return path, "" if same else "not what its source compiles to"


def _written(held: bytes) -> object:
    """All that bytecode holds, as it is written, whatever is shared or interned (CPython, Python/marshal.c).

    `==` of code objects leaves out caches, specialised instructions, the stack's size and names of files, which run.
    Raises LookupError: it is not as `marshal.dumps` writes it.
    """
    stream, seen = io.BytesIO(held), list[Any]()
    numbers, last = (20, 2) if sys.version_info >= (3, 11) else (24, 1)

    def number(size: int = 4) -> int:
        return int.from_bytes(stream.read(size), "little")

    def value() -> Any:
        byte, place = stream.read(1)[0], len(seen)
        kind = chr(byte & 0x7F)
        if kind == "r":
            return seen[number()]
        seen.extend([None] * (byte >> 7))
        size = _SIZES[kind] if kind in _SIZES else number(1 if kind in "zZ)" else 4)
        read: Any = None
        if kind == "c":
            read = kind, [stream.read(numbers), *(value() for _ in range(8)), number(), *(value() for _ in range(last))]
        elif kind in "()>:":
            several = [value() for _ in range(size)]
            read = (kind, sorted(several, key=repr)) if kind == ">" else (kind == ":", several)
        elif kind == "l":
            read = size, stream.read(2 * min(size, (1 << 32) - size))  # negative, of a negative number
        else:
            read = "text" if kind in "utaAzZ" else kind, stream.read(size)
        seen[place : place + (byte >> 7)] = [read] * (byte >> 7)
        return read

    return value(), stream.read()


def judge(_subject: str, _expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """bytecode. expect: {known: {distribution: digests of its bytecode, found right before, of the same sources}}.

    evidence: {files, compiled: how many of them again, digests: {distribution without a fault: digest of its bytecode},
    wrong: {path: what is wrong}, wrong_count}.
    """
    if not evidence["files"]:
        return failed("there is no bytecode: each process compiles what it imports")
    faults = [f"{path} is {state}" for path, state in evidence["wrong"].items()]
    faults += cut(evidence, "wrong", "files of bytecode are not their sources'")
    again = f"{evidence['compiled']} compiled again, all of {len(evidence['digests'])} distributions right"
    return conclude(faults, f"{evidence['files']} files of bytecode are what their sources compile to ({again})")


CLAIMS = {"bytecode": judge}
