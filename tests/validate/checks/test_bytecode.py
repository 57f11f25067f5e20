"""bytecode/headers: headers of `.pyc` files against their sources (PEP 552)."""

import importlib.util
import marshal
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from validate.checks.static import bytecode
from validate.judging import Finding, Status

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
MAGIC = importlib.util.MAGIC_NUMBER
MAGIC_OF_ANOTHER_PYTHON = b"\0" + MAGIC[1:]
BY_TIME, BY_UNCHECKED_HASH, BY_CHECKED_HASH = 0, 1, 3
"""Flags of a header: how it names its source."""

SOURCE = b"x = 1"
HASH = importlib.util.source_hash(SOURCE)
CODE = marshal.dumps(compile(SOURCE, "a.py", "exec"))
HALF_OF_CODE = CODE[: len(CODE) // 2]
ANOTHER_STAMP = bytes(8)
"""The time and size, or the hash, of another source."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "a.py"
    file.write_bytes(SOURCE)
    return file


def time_and_size(source: Path) -> bytes:
    facts = source.stat()
    return struct.pack("<II", int(facts.st_mtime), facts.st_size)


def fault_of(
    source: Path, flags: int, stamp: bytes, *, magic: bytes = MAGIC, code: bytes = CODE
) -> str:
    """Return what is wrong with bytecode that has this header and code."""
    compiled = source.with_suffix(".pyc")
    compiled.write_bytes(magic + struct.pack("<I", flags) + stamp + code)
    return bytecode.find_fault(str(compiled), str(source), {str(source): source.lstat()}, PYTHON)


def test_the_time_and_size_of_the_source_fit(source: Path) -> None:
    assert fault_of(source, BY_TIME, time_and_size(source)) == ""


@pytest.mark.parametrize("flags", [BY_CHECKED_HASH, BY_UNCHECKED_HASH])
def test_the_hash_of_the_source_fits(source: Path, flags: int) -> None:
    assert fault_of(source, flags, HASH) == ""


def test_another_time_or_size_is_void(source: Path) -> None:
    fault = fault_of(source, BY_TIME, ANOTHER_STAMP)

    assert fault == "ignored by Python, as its source has another time or size"


@pytest.mark.parametrize("flags", [BY_CHECKED_HASH, BY_UNCHECKED_HASH])
def test_another_hash_is_stale_even_if_python_does_not_check_it(source: Path, flags: int) -> None:
    assert fault_of(source, flags, ANOTHER_STAMP) == "stale: it was made of another source"


def test_bytecode_of_another_python_is_a_fault(source: Path) -> None:
    fault = fault_of(source, BY_TIME, time_and_size(source), magic=MAGIC_OF_ANOTHER_PYTHON)

    assert fault == f"not of Python {PYTHON}"


@pytest.mark.parametrize(
    "code",
    [pytest.param(b"", id="behind-the-header"), pytest.param(HALF_OF_CODE, id="within-the-code")],
)
def test_bytecode_whose_code_ends_early_is_cut_short(source: Path, code: bytes) -> None:
    assert fault_of(source, BY_TIME, time_and_size(source), code=code) == "cut short"


def test_bytecode_whose_header_ends_early_is_cut_short(source: Path) -> None:
    assert fault_of(source, BY_TIME, stamp=b"", code=b"") == "cut short"


def test_the_code_of_another_python_than_the_readers_is_not_read(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What marshal writes differs from release to release, so the reader's own can't tell."""
    monkeypatch.setattr(bytecode, "_OWN_MAGIC", 0)

    assert fault_of(source, BY_CHECKED_HASH, HASH, code=HALF_OF_CODE) == ""


def test_a_link_to_a_source_counts_as_that_source(source: Path) -> None:
    link = source.with_name("b.py")
    link.symlink_to(source)
    os.utime(source, (1, 1))

    assert fault_of(link, BY_TIME, struct.pack("<II", 1, len(SOURCE))) == ""


# ---- Judging.


def judged(**measured: Any) -> Finding:
    """Judge evidence. What is not given is well."""
    evidence: Any = {"python": "3.11", "files": 9, "faults": {}, "faults_count": 0, **measured}
    return bytecode.judge("", {}, evidence)


def test_bytecode_without_faults_passes() -> None:
    assert judged().status is Status.PASS


def test_an_image_without_bytecode_fails() -> None:
    reason = "the image has no bytecode (.pyc files), so each process compiles what it imports"

    assert judged(files=0)[:2] == (Status.FAIL, reason)


def test_faults_that_are_not_listed_are_counted() -> None:
    # given more faults than evidence lists, and more in its list than a reason names
    folder = "/opt/venv/lib/python3.11/site-packages/yaml/__pycache__"
    fault = "stale: it was made of another source"
    faults = {f"{folder}/{number}.cpython-311.pyc": fault for number in range(40)}

    status, reason, _ = judged(faults=faults, faults_count=300)

    assert status is Status.FAIL
    assert reason.startswith(
        "260 .pyc files are cut short or not of their sources, besides those that "
        "evidence.json lists; the bytecode yaml/__pycache__/0.cpython-311.pyc is stale: "
    )
    assert reason.endswith("; and 37 more")
