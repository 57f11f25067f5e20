"""Processors: the loader of one finds nothing of the other's, and each has vector code of its own."""

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.elves import make
from validate.binaries import loader
from validate.binaries.loader import (
    AARCH64,
    X86_64,
    Files,
    Process,
    SearchPath,
    machine_named,
    machine_spoken,
    read_all,
)
from validate.checks.cpu import instructions
from validate.checks.static.libraries import judge
from validate.judging import Status

PTRUE, CNTD, NEON_FADD = (struct.pack("<I", word) for word in (0x2518E3E0, 0x04E0E3E0, 0x4E20D400))
READS_ID_AA64PFR0, READS_COUNTER = (struct.pack("<I", word) for word in (0xD5380400, 0xD53BE040))


def test_known_machines_are_named_and_spoken_of() -> None:
    assert [machine_named(name) for name in ("x86_64", "aarch64")] == [X86_64, AARCH64]
    assert [machine_spoken(number) for number in (62, 183, 243)] == ["x86-64", "AArch64", "machine 243"]
    with pytest.raises(KeyError):
        machine_named("riscv64")


def test_a_library_of_another_processor_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    (tmp_path / "first" / "libz.so.1").write_bytes(make(machine=X86_64.number))
    (tmp_path / "second" / "libz.so.1").write_bytes(make(machine=AARCH64.number))
    search = SearchPath(library_path=(str(tmp_path / "first"), str(tmp_path / "second")), defaults=())
    found = {one.name: Process(search, Files(one)).resolve("libz.so.1", "") for one in (X86_64, AARCH64)}
    assert found == {"x86_64": str(tmp_path / "first/libz.so.1"), "aarch64": str(tmp_path / "second/libz.so.1")}


def test_a_file_of_another_processor_is_named_with_both(tmp_path: Path) -> None:
    path = tmp_path / "libtorch_cuda.so"
    path.write_bytes(make(machine=X86_64.number))
    found, unreadable = read_all([str(path)], {}, Files(AARCH64))
    assert not found
    assert unreadable == [{"path": str(path), "error": "it is built for x86-64, not AArch64"}]


def test_a_file_of_another_processor_is_no_fault_beside_its_own_distributions_library_of_that_name(
    tmp_path: Path,
) -> None:
    here, stub, other = (tmp_path / folder / "libcute.so" for folder in ("lib", "stubs", "elsewhere"))
    for path, machine in ((here, X86_64), (stub, AARCH64), (other, AARCH64)):
        path.parent.mkdir()
        path.write_bytes(make(machine=machine.number))
    owners = {str(here): ("cutlass",), str(stub): ("cutlass",), str(other): ("another",)}
    _, unreadable = read_all(list(owners), owners, Files(X86_64))
    assert {one["path"]: one.get("alternative") for one in unreadable} == {str(stub): str(here), str(other): None}
    evidence: Any = {"files": 1, "unreadable": unreadable, "linked": []}
    found = judge("toolkit", {"of": "toolkit", "host": [], "exceptions": [], "other_platforms": []}, evidence)  # type: ignore[typeddict-item]
    assert found.status is Status.FAIL and str(other) in found.reason and str(stub) not in found.reason


def test_the_loaders_cache_and_folders_are_the_processors(tmp_path: Path) -> None:
    strings = b"libz.so.1\0/lib/of-x86\0/lib/of-arm\0"
    at = 48 + 2 * 24
    rows = struct.pack("<iIIIQ", 0x0303, at, at + 10, 0, 0) + struct.pack("<iIIIQ", 0x0A03, at, at + 22, 0, 0)
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(b"glibc-ld.so.cache1.1" + struct.pack("<II", 2, len(strings)) + bytes(20) + rows + strings)
    search = SearchPath.of({}, "/", AARCH64, str(cache))
    assert search.cache == {"libz.so.1": ["/lib/of-arm"]}
    assert search.defaults[0] == "/lib/aarch64-linux-gnu" == AARCH64.folders[0]
    assert loader.read_cache(cache.read_bytes()) == {"libz.so.1": ["/lib/of-x86"]}


def sve(code: bytes) -> int:
    return instructions._sve(code[3::4]) - instructions._aligned(instructions._VECTOR_LENGTH, code, 0, len(code))


def test_sve_is_told_from_neon_and_from_the_unwinders_question() -> None:
    assert sve(NEON_FADD * 100) == 0
    assert sve(NEON_FADD + PTRUE + NEON_FADD) == 1
    assert sve((NEON_FADD + CNTD) * 6) == 0


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_an_instruction_is_sves_by_its_bits_25_to_28(words: list[int]) -> None:
    expected = sum((word >> 25) & 0xF == 0b0010 and word != 0x04E0E3E0 for word in words)
    assert sve(b"".join(struct.pack("<I", word) for word in words)) == expected


@pytest.mark.parametrize(("word", "asks"), [(READS_ID_AA64PFR0, 1), (READS_COUNTER, 0), (NEON_FADD, 0)])
def test_a_file_asks_by_reading_an_id_register(word: bytes, asks: int) -> None:
    code = NEON_FADD + word
    assert instructions._aligned(instructions._ID_REGISTER, code, 0, len(code)) == asks
