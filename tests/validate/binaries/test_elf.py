"""The ELF reader, dynamic symbols and the replayed loader, on small files for two processors."""

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


def test_what_the_loader_reads_is_read() -> None:
    file = elf.parse(io.BytesIO(SAMPLE))

    assert (file.soname, file.needed) == ("libx.so.1", ("libc.so.6", "libb.so.2"))
    assert (file.rpath, file.runpath) == ((), ("$ORIGIN", "/b"))
    assert (file.machine, file.dynamic, file.executable) == (elf.X86_64, True, False)


def test_dynamic_symbols_are_read_with_their_versions() -> None:
    symbols = dynsym.parse(io.BytesIO(SAMPLE))

    assert (symbols.exports, symbols.undefined) == ({b"given"}, {b"wanted"})
    assert symbols.needed_versions == {
        "libc.so.6": {"GLIBC_2.34", "GLIBC_2.2.5"},
        "libm.so.6": {"GLIBC_2.29"},
    }
    assert symbols.defined_versions == {"LIB", "LIB_1"}


def test_a_library_without_symbols_exports_none() -> None:
    assert dynsym.parse(io.BytesIO(elves.make())).exports == frozenset()


def test_a_real_library_with_a_gnu_hash_table_is_read() -> None:
    libraries = sorted(Path("/lib/x86_64-linux-gnu").glob("libc.so.6"))
    if not libraries:
        pytest.skip("no C library at Debian's place")

    symbols = dynsym.read(libraries[0])

    assert {b"printf", b"malloc", b"__libc_start_main"} <= symbols.exports
    assert "GLIBC_2.2.5" in symbols.defined_versions


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
    """Where one section is damaged, others may be, too: the whole file is refused."""
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
    """Write a library with these parts (see elves.make), and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elves.make(**parts))  # type: ignore[arg-type]
    return str(path)


def process(*folders: Path) -> Process:
    """Return a process that looks for libraries only in these folders, as LD_LIBRARY_PATH."""
    return Process(SearchPath(library_path=tuple(map(str, folders)), defaults=()), Files())


def missing(library: str, into: Process | None = None) -> list[str]:
    """Return the names of the libraries that are not found when a library is loaded."""
    loading = into or process()
    return [row.name for row in loading.load(library)]


def test_origin_is_the_folder_of_the_file_and_libraries_that_need_each_other_end(
    tmp_path: Path,
) -> None:
    library = write(tmp_path / "p/lib/a.so", needed=["libb.so"], runpath="$ORIGIN/../../q")
    write(tmp_path / "q/libb.so", needed=["libc.so"], runpath="$ORIGIN")
    write(tmp_path / "q/libc.so", needed=["libb.so"], runpath="$ORIGIN")

    assert missing(library) == []


def test_a_search_path_may_be_as_long_as_tensorflows(tmp_path: Path) -> None:
    """That of libtensorflow_framework.so.2 (2.21) has 20 KB."""
    write(tmp_path / "x/libb.so")
    runpath = ":".join(["$ORIGIN/../nvidia/nccl/lib"] * 1000 + ["$ORIGIN/x"])

    library = write(tmp_path / "a.so", needed=["libb.so"], runpath=runpath)

    assert missing(library) == []


def test_rpath_reaches_what_is_needed_below_and_runpath_does_not(tmp_path: Path) -> None:
    write(tmp_path / "x/libdeep.so")
    write(tmp_path / "x/libmiddle.so", needed=["libdeep.so"])
    with_rpath = write(tmp_path / "r.so", needed=["libmiddle.so"], rpath="$ORIGIN/x")
    with_runpath = write(tmp_path / "s.so", needed=["libmiddle.so"], runpath="$ORIGIN/x")

    assert missing(with_rpath) == []
    assert missing(with_runpath) == ["libdeep.so"]


def test_a_library_that_is_loaded_already_is_not_looked_for(tmp_path: Path) -> None:
    running = process()
    running.load(write(tmp_path / "elsewhere/odd-name.so", soname="libb.so.1"))
    library = write(tmp_path / "a.so", needed=["libb.so.1"])

    assert missing(library, running) == []


@pytest.mark.parametrize(("kind", "winner"), [("rpath", "own"), ("runpath", "forced")])
def test_the_library_path_comes_between_rpath_and_runpath(
    tmp_path: Path, kind: str, winner: str
) -> None:
    library = write(tmp_path / "a.so", needed=["libb.so"], **{kind: str(tmp_path / "own")})
    write(tmp_path / "own/libb.so")
    write(tmp_path / "forced/libb.so")
    loading = process(tmp_path / "forced")

    loading.load(library)

    assert loading.loaded["libb.so"] == str(tmp_path / winner / "libb.so")


def test_a_library_of_another_processor_is_passed_over(tmp_path: Path) -> None:
    intel = write(tmp_path / "first/libz.so.1", machine=X86_64.number)
    arm = write(tmp_path / "second/libz.so.1", machine=AARCH64.number)
    folders = (str(tmp_path / "first"), str(tmp_path / "second"))
    search = SearchPath(library_path=folders, defaults=())

    assert Process(search, Files(X86_64)).resolve("libz.so.1", "") == intel
    assert Process(search, Files(AARCH64)).resolve("libz.so.1", "") == arm


def test_a_library_of_another_processor_is_named_with_both(tmp_path: Path) -> None:
    intel = write(tmp_path / "libz.so.1", machine=X86_64.number)

    libraries, unreadable = loader.read_binaries([intel], {}, Files(AARCH64))

    assert libraries == []
    error = "it is built for x86-64, not AArch64"
    assert unreadable == [{"path": intel, "error": error, "owners": []}]


def test_a_32_bit_program_is_named_with_a_library_that_its_distribution_has_for_this_machine(
    tmp_path: Path,
) -> None:
    program = tmp_path / "bin/apm_arm"
    program.parent.mkdir()
    program.write_bytes(b"\x7fELF\x01\x01" + bytes(60))
    library = write(tmp_path / "libz.so.1", machine=X86_64.number)
    owners = {str(program): ("gekko",), library: ("gekko",)}

    _, unreadable_alone = loader.read_binaries([str(program)], owners, Files(X86_64))
    _, unreadable = loader.read_binaries(list(owners), owners, Files(X86_64))

    error = "it is not 64-bit little-endian"
    row = {"path": str(program), "error": error, "owners": ["gekko"]}
    assert unreadable_alone == [row]
    assert unreadable == [{**row, "beside": library}]


def test_machines_are_found_by_their_names_and_numbers() -> None:
    assert machine_named("x86_64") == X86_64
    assert machine_named("aarch64") == AARCH64
    assert name_machine(243) == "machine 243"


def test_a_file_of_another_processor_is_no_fault_beside_its_own_distributions_library_of_that_name(
    tmp_path: Path,
) -> None:
    here = write(tmp_path / "lib/libcute.so", machine=X86_64.number)
    stub = write(tmp_path / "stubs/libcute.so", machine=AARCH64.number)
    other = write(tmp_path / "elsewhere/libcute.so", machine=AARCH64.number)
    owners = {here: ("cutlass",), stub: ("cutlass",), other: ("another",)}
    expect: Any = {"of": "toolkit", "host": [], "exceptions": [], "other_platforms": []}

    _, unreadable = loader.read_binaries(list(owners), owners, Files(X86_64))
    evidence: Any = {"files": 1, "unreadable": unreadable, "linked": []}
    finding = judge("toolkit", expect, evidence)

    assert {row["path"]: row.get("alternative") for row in unreadable} == {stub: here, other: None}
    assert finding.status is Status.FAIL
    assert other in finding.reason and stub not in finding.reason


def cache(*entries: tuple[int, str, str]) -> bytes:
    """Return an ld.so.cache of the new format, with entries (flags, name, path)."""
    strings_offset = 48 + 24 * len(entries)
    rows, strings = b"", b""
    for flags, name, path in entries:
        offset = strings_offset + len(strings)
        rows += struct.pack("<iIIIQ", flags, offset, offset + len(name) + 1, 0, 0)
        strings += f"{name}\0{path}\0".encode()
    counts = struct.pack("<II", len(entries), len(strings))
    return b"glibc-ld.so.cache1.1" + counts + bytes(20) + rows + strings


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
    """That is the next multiple of eight bytes behind a table of the old format."""
    old_table = b"ld.so-1.7.0\0" + struct.pack("<Iiii", 1, 3, 0, 0)

    assert loader.read_cache(old_table + bytes(4) + CACHE) == {"libz.so.1": ["/x86"]}
    for decoy in (old_table + CACHE, old_table + bytes(12) + CACHE, b"x" + CACHE):
        with pytest.raises(ElfError):
            loader.read_cache(decoy)


@given(st.integers(0, len(CACHE) - 1), st.binary(min_size=1, max_size=8))
def test_a_damaged_cache_is_read_or_refused(position: int, damage: bytes) -> None:
    with contextlib.suppress(ElfError):
        loader.read_cache(CACHE[:position] + damage + CACHE[position + len(damage) :])
