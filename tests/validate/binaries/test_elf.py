"""The ELF reader and the replayed loader, on files made for the purpose."""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import elves, fatbins
from validate.binaries import elf, loader
from validate.binaries.elf import ElfError
from validate.binaries.loader import Files, Process, SearchPath

SAMPLE = elves.make(soname="libx.so.1", needed=["liba.so", "libb.so.2"], rpath="$ORIGIN/../a:/b")


def test_what_the_loader_reads_is_read() -> None:
    found = elf.parse(io.BytesIO(elves.make(soname="libx.so.1", needed=["liba.so", "libb.so.2"], runpath="$ORIGIN:/b")))
    assert (found.soname, found.needed) == ("libx.so.1", ("liba.so", "libb.so.2"))
    assert (found.rpath, found.runpath) == ((), ("$ORIGIN", "/b"))
    assert (found.machine, found.dynamic, found.executable) == (elf.X86_64, True, False)


@pytest.mark.parametrize("length", range(len(SAMPLE)))
def test_a_cut_file_is_an_error(length: int) -> None:
    with pytest.raises(ElfError):
        elf.parse(io.BytesIO(SAMPLE[:length]))


@given(st.integers(0, len(SAMPLE) - 1), st.binary(min_size=1, max_size=8))
def test_a_damaged_file_is_read_or_refused(position: int, damage: bytes) -> None:
    with contextlib.suppress(ElfError):
        elf.parse(io.BytesIO(SAMPLE[:position] + damage + SAMPLE[position + len(damage) :]))


@given(st.binary(max_size=400))
def test_noise_is_read_or_refused(noise: bytes) -> None:
    with contextlib.suppress(ElfError):
        elf.parse(io.BytesIO(elf.MAGIC + b"\x02\x01" + noise))


@pytest.mark.parametrize("read", [lambda data: list(elf.sections(data)), elf.symbol_table], ids=["sections", "symbols"])
@pytest.mark.parametrize(("row", "field"), [(1, 24), (2, 32), (3, 24), (3, 32)])
def test_no_section_lies_outside_of_its_file(read: Callable[[bytes], object], row: int, field: int) -> None:
    """Whichever it is: where one is damaged, who says that the others are not?"""
    data = bytearray(fatbins.cubin({"k": 4000}))
    at = int.from_bytes(data[40:48], "little") + row * 64 + field
    data[at : at + 8] = (10**9).to_bytes(8, "little")
    with pytest.raises(ElfError, match="outside of the file"):
        read(bytes(data))


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


def missing(process: Process, path: str) -> list[str]:
    return [one.name for one in process.load(path)]


def test_origin_is_the_folder_of_the_file(tmp_path: Path) -> None:
    asking = write(tmp_path / "p/lib/a.so", needed=["libb.so"], runpath="$ORIGIN/../../q")
    write(tmp_path / "q/libb.so")
    assert missing(Process(SearchPath(defaults=()), Files()), asking) == []


def test_rpath_reaches_what_is_needed_below_and_runpath_does_not(tmp_path: Path) -> None:
    write(tmp_path / "x/libdeep.so")
    write(tmp_path / "x/libmiddle.so", needed=["libdeep.so"])
    with_rpath = write(tmp_path / "r.so", needed=["libmiddle.so"], rpath="$ORIGIN/x")
    with_runpath = write(tmp_path / "s.so", needed=["libmiddle.so"], runpath="$ORIGIN/x")
    assert missing(Process(SearchPath(defaults=()), Files()), with_rpath) == []
    assert missing(Process(SearchPath(defaults=()), Files()), with_runpath) == ["libdeep.so"]


@pytest.mark.parametrize(("kind", "winner"), [("rpath", "own"), ("runpath", "forced")])
def test_the_library_path_comes_between_rpath_and_runpath(tmp_path: Path, kind: str, winner: str) -> None:
    asking = write(tmp_path / "a.so", needed=["libb.so"], **{kind: str(tmp_path / "own")})
    write(tmp_path / "own/libb.so")
    write(tmp_path / "forced/libb.so")
    process = Process(SearchPath(library_path=(str(tmp_path / "forced"),), defaults=()), Files())
    process.load(asking)
    assert process.held["libb.so"] == str(tmp_path / winner / "libb.so")


def test_what_the_process_holds_is_not_looked_for(tmp_path: Path) -> None:
    process = Process(SearchPath(defaults=()), Files())
    process.load(write(tmp_path / "elsewhere/odd-name.so", soname="libb.so.1"))
    assert missing(process, write(tmp_path / "a.so", needed=["libb.so.1"])) == []


def test_a_file_for_another_machine_is_passed_over(tmp_path: Path) -> None:
    asking = write(tmp_path / "a.so", needed=["libb.so"], runpath=f"{tmp_path}/arm:{tmp_path}/intel")
    write(tmp_path / "arm/libb.so", machine=183)
    write(tmp_path / "intel/libb.so")
    process = Process(SearchPath(defaults=()), Files())
    assert process.resolve("libb.so", asking) == str(tmp_path / "intel/libb.so")


def test_libraries_that_need_each_other_end(tmp_path: Path) -> None:
    first = write(tmp_path / "liba.so", needed=["libb.so"], runpath="$ORIGIN")
    write(tmp_path / "libb.so", needed=["liba.so"], runpath="$ORIGIN")
    assert missing(Process(SearchPath(defaults=()), Files()), first) == []


def cache(*entries: tuple[int, str, str]) -> bytes:
    """An ld.so.cache of the new format."""
    strings_at = 48 + 24 * len(entries)
    rows, strings = b"", b""
    for flags, name, path in entries:
        at = strings_at + len(strings)
        rows += struct.pack("<iIIIQ", flags, at, at + len(name) + 1, 0, 0)
        strings += f"{name}\0{path}\0".encode()
    return b"glibc-ld.so.cache1.1" + struct.pack("<II", len(entries), len(strings)) + bytes(20) + rows + strings


def test_the_cache_is_read_for_this_machine_only() -> None:
    data = cache((0x0303, "libz.so.1", "/lib/libz.so.1"), (0x0003, "libz.so.1", "/lib32/libz.so.1"))
    assert loader.read_cache(data) == {"libz.so.1": ["/lib/libz.so.1"]}


@given(st.integers(0, 99), st.binary(min_size=1, max_size=8))
def test_a_damaged_cache_is_read_or_refused(position: int, damage: bytes) -> None:
    data = cache((0x0303, "libz.so.1", "/lib/libz.so.1"))
    with contextlib.suppress(ElfError):
        loader.read_cache(data[:position] + damage + data[position + len(damage) :])
