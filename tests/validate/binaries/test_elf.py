"""The ELF reader, dynamic symbols and the replayed loader, on files made for the purpose; of two processors."""

import contextlib
import io
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import elves, fatbins
from validate.binaries import dynsym, elf, loader
from validate.binaries.elf import ElfError
from validate.binaries.loader import (
    AARCH64,
    X86_64,
    Files,
    Process,
    SearchPath,
    machine_named,
    name_machine,
)
from validate.checks.static.libraries import judge
from validate.judging import Status

SAMPLE = elves.make(
    soname="libx.so.1",
    needed=["libc.so.6", "libb.so.2"],
    runpath="$ORIGIN:/b",
    exports=["given"],
    undefined=["wanted"],
    weak=["optional"],
    needs_versions={"libc.so.6": ["GLIBC_2.34", "GLIBC_2.2.5"], "libm.so.6": ["GLIBC_2.29"]},
    defines_versions=["LIB", "LIB_1"],
)


def read(data: bytes) -> tuple[elf.Elf, dynsym.Symbols]:
    return elf.parse(io.BytesIO(data)), dynsym.parse(io.BytesIO(data))


def test_what_the_loader_reads_is_read() -> None:
    found, symbols = read(SAMPLE)
    assert (found.soname, found.needed) == ("libx.so.1", ("libc.so.6", "libb.so.2"))
    assert (found.rpath, found.runpath) == ((), ("$ORIGIN", "/b"))
    assert (found.machine, found.dynamic, found.executable) == (elf.X86_64, True, False)
    assert (symbols.exports, symbols.undefined) == ({b"given"}, {b"wanted"})
    assert symbols.needed_versions == {
        "libc.so.6": {"GLIBC_2.34", "GLIBC_2.2.5"},
        "libm.so.6": {"GLIBC_2.29"},
    }
    assert symbols.defined_versions == {"LIB", "LIB_1"}
    assert read(elves.make())[1].exports == frozenset()


def test_a_real_library_with_a_gnu_hash_table() -> None:
    libraries = sorted(Path("/lib/x86_64-linux-gnu").glob("libc.so.6"))
    if not libraries:
        pytest.skip("no C library at Debian's place")
    found = dynsym.read(libraries[0])
    assert {b"printf", b"malloc", b"__libc_start_main"} <= found.exports
    assert "GLIBC_2.2.5" in found.defined_versions


@pytest.mark.parametrize("length", range(0, len(SAMPLE), 7))
def test_a_cut_file_is_an_error(length: int) -> None:
    for parse in (elf.parse, dynsym.parse):
        with pytest.raises(ElfError):
            parse(io.BytesIO(SAMPLE[:length]))


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=6
    ),
    st.binary(),
)
def test_damaged_files_and_noise_never_hang_or_fill_memory(
    changes: list[tuple[int, int]], noise: bytes
) -> None:
    data = bytearray(SAMPLE)
    for position, value in changes:
        data[position] = value
    before = time.process_time()
    for content in (bytes(data), elf.MAGIC + b"\x02\x01" + noise):
        for parse in (elf.parse, dynsym.parse):
            with contextlib.suppress(ElfError):
                parse(io.BytesIO(content))
    assert time.process_time() - before < 10, "of this process alone: what else runs does not count"


@pytest.mark.parametrize(
    "parse", [lambda data: list(elf.sections(data)), elf.symbol_table], ids=["sections", "symbols"]
)
@pytest.mark.parametrize(("row", "field"), [(1, 24), (2, 32), (3, 24), (3, 32)])
def test_no_section_lies_outside_of_its_file(
    parse: Callable[[bytes], object], row: int, field: int
) -> None:
    """Whichever it is: where one is damaged, who says that the others are not?"""
    data = bytearray(fatbins.cubin({"k": 4000}))
    at = int.from_bytes(data[40:48], "little") + row * 64 + field
    data[at : at + 8] = (10**9).to_bytes(8, "little")
    with pytest.raises(ElfError, match="outside of the file"):
        parse(bytes(data))


def test_names_that_take_no_room_in_the_file_are_none() -> None:
    data = bytearray(fatbins.cubin({"k": 4000}))
    at = int.from_bytes(data[40:48], "little") + 64 + 4
    data[at : at + 4] = (8).to_bytes(4, "little")
    rows, strings = elf.symbol_table(bytes(data))
    assert len(list(rows)) == 3 and strings == b""


def write(path: Path, **parts: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elves.make(**parts))  # type: ignore[arg-type]
    return str(path)


def process(*folders: Path) -> Process:
    return Process(SearchPath(library_path=tuple(map(str, folders)), defaults=()), Files())


def missing(asking: str, into: Process | None = None) -> list[str]:
    return [one.name for one in (into or process()).load(asking)]


def test_origin_is_the_folder_of_the_file_and_libraries_that_need_each_other_end(
    tmp_path: Path,
) -> None:
    asking = write(tmp_path / "p/lib/a.so", needed=["libb.so"], runpath="$ORIGIN/../../q")
    write(tmp_path / "q/libb.so", needed=["libc.so"], runpath="$ORIGIN")
    write(tmp_path / "q/libc.so", needed=["libb.so"], runpath="$ORIGIN")
    assert missing(asking) == []


def test_rpath_reaches_what_is_needed_below_and_runpath_does_not(tmp_path: Path) -> None:
    write(tmp_path / "x/libdeep.so")
    write(tmp_path / "x/libmiddle.so", needed=["libdeep.so"])
    assert missing(write(tmp_path / "r.so", needed=["libmiddle.so"], rpath="$ORIGIN/x")) == []
    assert missing(write(tmp_path / "s.so", needed=["libmiddle.so"], runpath="$ORIGIN/x")) == [
        "libdeep.so"
    ]


def test_what_the_process_holds_is_not_looked_for(tmp_path: Path) -> None:
    found = process()
    found.load(write(tmp_path / "elsewhere/odd-name.so", soname="libb.so.1"))
    assert missing(write(tmp_path / "a.so", needed=["libb.so.1"]), found) == []


@pytest.mark.parametrize(("kind", "winner"), [("rpath", "own"), ("runpath", "forced")])
def test_the_library_path_comes_between_rpath_and_runpath(
    tmp_path: Path, kind: str, winner: str
) -> None:
    asking = write(tmp_path / "a.so", needed=["libb.so"], **{kind: str(tmp_path / "own")})
    write(tmp_path / "own/libb.so")
    write(tmp_path / "forced/libb.so")
    found = process(tmp_path / "forced")
    found.load(asking)
    assert found.loaded["libb.so"] == str(tmp_path / winner / "libb.so")


def test_a_library_of_another_processor_is_passed_over_and_named_with_both(tmp_path: Path) -> None:
    intel = write(tmp_path / "first/libz.so.1", machine=X86_64.number)
    arm = write(tmp_path / "second/libz.so.1", machine=AARCH64.number)
    search = SearchPath(
        library_path=(str(tmp_path / "first"), str(tmp_path / "second")), defaults=()
    )
    assert [Process(search, Files(one)).resolve("libz.so.1", "") for one in (X86_64, AARCH64)] == [
        intel,
        arm,
    ]
    found, unreadable = loader.read_binaries([intel], {}, Files(AARCH64))
    assert [machine_named(one.name) for one in (X86_64, AARCH64)] == [X86_64, AARCH64]
    assert name_machine(243) == "machine 243"
    error = "it is built for x86-64, not AArch64"
    assert (found, unreadable) == ([], [{"path": intel, "error": error, "owners": []}])
    (old := tmp_path / "bin/apm_arm").parent.mkdir()
    old.write_bytes(b"\x7fELF\x01\x01" + bytes(60))  # of a 32-bit machine
    _, unreadable = loader.read_binaries([str(old)], {str(old): ("gekko",)}, Files(X86_64))
    row = {"path": str(old), "error": "it is not 64-bit little-endian", "owners": ["gekko"]}
    assert unreadable == [row]
    owners = {str(old): ("gekko",), intel: ("gekko",)}
    assert loader.read_binaries(list(owners), owners, Files(X86_64))[1] == [
        {**row, "beside": intel}
    ]


def test_a_file_of_another_processor_is_no_fault_beside_its_own_distributions_library_of_that_name(
    tmp_path: Path,
) -> None:
    here = write(tmp_path / "lib/libcute.so", machine=X86_64.number)
    stub, other = (
        write(tmp_path / folder / "libcute.so", machine=AARCH64.number)
        for folder in ("stubs", "elsewhere")
    )
    owners = {here: ("cutlass",), stub: ("cutlass",), other: ("another",)}
    _, unreadable = loader.read_binaries(list(owners), owners, Files(X86_64))
    assert {one["path"]: one.get("alternative") for one in unreadable} == {stub: here, other: None}
    evidence: Any = {"files": 1, "unreadable": unreadable, "linked": []}
    found = judge(
        "toolkit", {"of": "toolkit", "host": [], "exceptions": [], "other_platforms": []}, evidence
    )
    assert found.status is Status.FAIL and other in found.reason and stub not in found.reason


def cache(*entries: tuple[int, str, str]) -> bytes:
    """An ld.so.cache of the new format."""
    strings_at = 48 + 24 * len(entries)
    rows, strings = b"", b""
    for flags, name, path in entries:
        at = strings_at + len(strings)
        rows += struct.pack("<iIIIQ", flags, at, at + len(name) + 1, 0, 0)
        strings += f"{name}\0{path}\0".encode()
    return (
        b"glibc-ld.so.cache1.1"
        + struct.pack("<II", len(entries), len(strings))
        + bytes(20)
        + rows
        + strings
    )


CACHE = cache(
    (0x0303, "libz.so.1", "/x86"), (0x0003, "libz.so.1", "/lib32"), (0x0A03, "libz.so.1", "/arm")
)


def test_the_loaders_cache_and_folders_are_the_processors(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(CACHE)
    search = SearchPath.of({}, "/", AARCH64, str(tmp_path / "cache"))
    assert search.cache == {"libz.so.1": ["/arm"]}
    assert search.defaults[0] == "/lib/aarch64-linux-gnu" == AARCH64.folders[0]
    assert loader.read_cache(CACHE) == {"libz.so.1": ["/x86"]}


def test_a_cache_counts_where_the_loader_looks_for_it() -> None:
    old = b"ld.so-1.7.0\0" + struct.pack("<Iiii", 1, 3, 0, 0)
    assert loader.read_cache(old + bytes(4) + CACHE) == {"libz.so.1": ["/x86"]}
    for decoy in (old + CACHE, old + bytes(12) + CACHE, b"x" + CACHE):
        with pytest.raises(ElfError):
            loader.read_cache(decoy)


@given(st.integers(0, len(CACHE) - 1), st.binary(min_size=1, max_size=8))
def test_a_damaged_cache_is_read_or_refused(position: int, damage: bytes) -> None:
    with contextlib.suppress(ElfError):
        loader.read_cache(CACHE[:position] + damage + CACHE[position + len(damage) :])
