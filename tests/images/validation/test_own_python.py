"""Our own Python as files: with a loader of its own, and nothing left to the image."""

import os
import py_compile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.errors import UserError
from images.publish import sbom
from images.validation import own_python
from tests.support import elves
from tests.support.engine_contents import image_info
from validate.binaries.elf import ElfError


def test_a_program_that_the_image_could_come_before_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has room for"):
        own_python.python_files("/" + "x" * 300)
    (tmp_path / "a.so").write_bytes(elves.make(rpath="$ORIGIN/../lib:/opt/lib"))
    with pytest.raises(ElfError, match=r"a\.so has the RPATH /opt/lib, where"):
        own_python.needed_libraries("/bin/true", [tmp_path / "a.so"])


def test_what_this_machine_lacks_is_not_taken_from_the_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its loader would look there next: an empty file ends the search, and nothing of the image runs."""
    monkeypatch.setattr(own_python, "_OPENED_BY_NAME", ("libzstd.so.1", "libno-such-decoder.so.1"))
    found = own_python.python_files.__wrapped__("/judge")
    assert found[f"{own_python.LIBRARIES}/libno-such-decoder.so.1"] == b""
    assert isinstance(found[f"{own_python.LIBRARIES}/libc.so.6"], Path)


def test_bytecode_comes_in_a_sources_place_where_it_is_of_that_source(tmp_path: Path) -> None:
    for name in ("fits", "older", "others", "alone"):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    made = {
        name: Path(py_compile.compile(str(tmp_path / f"{name}.py"), doraise=True) or "")
        for name in ("fits", "older", "others")
    }
    made["others"].write_bytes(b"\0\0\r\n" + made["others"].read_bytes()[4:])
    os.utime(tmp_path / "older.py", (0, 0))
    assert {name.rpartition("/")[2] for name in own_python.standard_library(tmp_path)} == {
        "fits.pyc",
        "older.py",
        "others.py",
        "alone.py",
    }


@pytest.mark.parametrize("mine", [("Linux", "riscv64"), ("Linux", "aarch64"), ("Darwin", "arm64")])
def test_where_no_python_of_ours_runs_no_file_is_read(
    monkeypatch: pytest.MonkeyPatch, mine: tuple[str, str]
) -> None:
    engine: Any = SimpleNamespace(
        facts=SimpleNamespace(architecture="amd64"), inspect=lambda _reference: image_info()
    )
    monkeypatch.setattr(
        own_python, "platform", SimpleNamespace(system=lambda: mine[0], machine=lambda: mine[1])
    )
    with pytest.raises(UserError, match=f"is of amd64, this one of {mine[1]} with {mine[0]}"):
        sbom.read_packages(engine, "x")
