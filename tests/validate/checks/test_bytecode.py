"""bytecode/headers: headers of `.pyc` files against their sources."""

import importlib.util
import marshal
import os
import struct
import sys
from pathlib import Path

import pytest

from validate.checks.static import bytecode
from validate.judging import Status

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
MAGIC = importlib.util.MAGIC_NUMBER
SOURCE = b"x = 1"
HASH = importlib.util.source_hash(SOURCE)
CODE = marshal.dumps(compile(SOURCE, "a.py", "exec"))
BY_TIME, UNCHECKED_HASH, CHECKED_HASH = 0, 1, 3


@pytest.mark.parametrize(
    ("magic", "flags", "written", "code", "fault"),
    [
        (MAGIC, BY_TIME, None, CODE, ""),
        (MAGIC, CHECKED_HASH, HASH, CODE, ""),
        (MAGIC, UNCHECKED_HASH, HASH, CODE, ""),
        (MAGIC, BY_TIME, bytes(8), CODE, "void: its source has another time or size"),
        (MAGIC, UNCHECKED_HASH, bytes(8), CODE, "stale: it was made of another source"),
        (MAGIC, CHECKED_HASH, bytes(8), CODE, "stale: it was made of another source"),
        (b"\0" + MAGIC[1:], BY_TIME, None, CODE, f"not of Python {PYTHON}"),
        (MAGIC, BY_TIME, None, b"", "cut short"),
        (MAGIC, BY_TIME, b"", b"", "cut short"),
        (MAGIC, BY_TIME, None, CODE[: len(CODE) // 2], "cut short"),
    ],
)
def test_a_header_that_does_not_fit_is_told(
    tmp_path: Path, magic: bytes, flags: int, written: bytes | None, code: bytes, fault: str
) -> None:
    source, compiled = tmp_path / "a.py", tmp_path / "a.pyc"
    source.write_bytes(SOURCE)
    facts = source.stat()
    if written is None:
        written = struct.pack("<II", int(facts.st_mtime), facts.st_size)
    compiled.write_bytes(magic + struct.pack("<I", flags) + written + code)
    assert bytecode.find_fault(str(compiled), str(source), {str(source): facts}, PYTHON) == fault


def test_the_code_of_another_release_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What marshal writes differs from release to release, so the reader's own can't tell."""
    source, compiled = tmp_path / "a.py", tmp_path / "a.pyc"
    source.write_bytes(SOURCE)
    compiled.write_bytes(MAGIC + struct.pack("<I", CHECKED_HASH) + HASH + CODE[: len(CODE) // 2])
    monkeypatch.setattr(bytecode, "_OWN_MAGIC", 0)
    assert not bytecode.find_fault(str(compiled), str(source), {str(source): source.stat()}, PYTHON)


def test_a_link_to_a_source_counts_as_that_source(tmp_path: Path) -> None:
    source, link = tmp_path / "a.py", tmp_path / "b.py"
    source.write_bytes(SOURCE)
    os.utime(source, (1, 1))
    link.symlink_to(source)
    (tmp_path / "b.pyc").write_bytes(MAGIC + struct.pack("<III", 0, 1, len(SOURCE)) + CODE)
    assert not bytecode.find_fault(
        str(tmp_path / "b.pyc"), str(link), {str(link): link.lstat()}, PYTHON
    )


def test_no_bytecode_is_a_fault_and_faults_that_are_not_listed_are_counted() -> None:
    def judged(files: int, **faults: str) -> tuple[Status, str]:
        count = len(faults) + 2 if faults else 0
        return bytecode.judge(
            "", {}, {"python": "3.11", "files": files, "faults": faults, "faults_count": count}
        )

    assert judged(9)[0] is Status.PASS
    assert judged(0) == (Status.FAIL, "there is no bytecode: each process compiles what it imports")
    status, reason = judged(9, a="void")
    assert (
        status is Status.FAIL
        and reason == "a is void; 2 more files of bytecode are not their sources'"
    )
