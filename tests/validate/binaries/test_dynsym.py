"""Dynamic symbols as the loader sees them: of small files made for the purpose, and of this machine's own C library."""

from __future__ import annotations

import contextlib
import io
import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import elves
from validate.binaries import dynsym
from validate.binaries.elf import ElfError

GOOD = elves.make(
    exports=["given"],
    undefined=["wanted"],
    weak=["optional"],
    needs_versions={"libc.so.6": ["GLIBC_2.34", "GLIBC_2.2.5"], "libm.so.6": ["GLIBC_2.29"]},
    defines_versions=["LIB", "LIB_1"],
    needed=["libc.so.6"],
)


def test_symbols_and_versions_are_read() -> None:
    found = dynsym.parse(io.BytesIO(GOOD))
    assert found.exports == {b"given"}
    assert found.undefined == {b"wanted"}
    assert found.needed_versions == {"libc.so.6": {"GLIBC_2.34", "GLIBC_2.2.5"}, "libm.so.6": {"GLIBC_2.29"}}
    assert found.defined_versions == {"LIB", "LIB_1"}


def test_a_file_without_a_dynamic_section_has_none() -> None:
    assert dynsym.parse(io.BytesIO(elves.make())).exports == frozenset()


def test_a_real_library_with_a_gnu_hash_table() -> None:
    module = Path(math.__file__) if hasattr(math, "__file__") else None
    libraries = sorted(Path("/lib/x86_64-linux-gnu").glob("libc.so.6"))
    if not libraries:
        pytest.skip("no C library at Debian's place")
    found = dynsym.read(libraries[0])
    assert {b"printf", b"malloc", b"__libc_start_main"} <= found.exports
    assert "GLIBC_2.2.5" in found.defined_versions
    if module:
        assert any(name.startswith(b"Py") for name in dynsym.read(module).undefined)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_corrupted_bytes_never_hang_or_fill_memory(changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for position, value in changes:
        data[position] = value
    before = time.process_time()
    with contextlib.suppress(ElfError):
        dynsym.parse(io.BytesIO(bytes(data)))
    assert time.process_time() - before < 10, "of this process alone: what else runs does not count"


@pytest.mark.parametrize("cut", range(0, len(GOOD), 23))
def test_a_cut_file_is_refused(cut: int) -> None:
    with pytest.raises(ElfError):
        dynsym.parse(io.BytesIO(GOOD[:cut]))
