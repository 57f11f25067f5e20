"""What the dynamic loader reads of an ELF file, with the standard library alone.

The loader's view comes from program headers alone, as section headers may be stripped; `sections` is for what only they
name (device code). Every offset and count of the file is checked against its size before use, so a corrupted file
raises ElfError and never loops or fills memory. Layout: System V ABI, chapters 4 and 5 (64-bit).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"\x7fELF"
X86_64 = 62

_HEADER = struct.Struct("<HHIQQQIHHHHHH")
HEADER_BYTES = 16 + _HEADER.size
_SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
_SHT_SYMTAB, _SHT_NOBITS = 2, 8
_MOST_PROGRAM_HEADERS = 1024
_MOST_DYNAMIC_ENTRIES = 65536
_LONGEST_STRING = 4096
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
DT_STRTAB, _DT_STRSZ = 5, 10
_DT_NULL, _DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 1, 14, 15, 29


class ElfError(ValueError):
    """This is no ELF file the loader of a 64-bit little-endian machine could read."""


class OtherClassError(ElfError):
    """It is one for 32-bit or big-endian machines."""


@dataclass(frozen=True, kw_only=True)
class Elf:
    """The loader's view of one file."""

    machine: int
    """e_machine: 62 is x86-64."""
    soname: str
    """Empty where the file has none."""
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    dynamic: bool
    """False for an object the loader never sees: a static executable, a relocatable file."""
    executable: bool
    """It names an interpreter, so it is started as a process, not loaded into one."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One row of the section headers: for tools, not for the loader."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int


class DynamicTable:
    """The dynamic section of a file, and the tables in memory that it points to."""

    def __init__(self, stream: BinaryIO) -> None:
        """Read a seekable stream. Raises ElfError. No entries: the file has no dynamic section."""
        self._stream, self._size = stream, stream.seek(0, os.SEEK_END)
        ident = self._read(0, 16)
        if ident[:4] != MAGIC:
            raise ElfError("it does not begin with the ELF magic")
        if ident[4:6] != b"\x02\x01":
            raise OtherClassError("it is not 64-bit little-endian")
        _, self.machine, _, _, table, _, _, _, size, count = struct.unpack("<HHIQQQIHHH", self._read(16, 42))
        if count > _MOST_PROGRAM_HEADERS or (count and size != 56):
            raise ElfError(f"{count} program headers of {size} bytes are not to be believed")
        rows = struct.iter_unpack("<IIQQQQQQ", self._read(table, count * 56) if count else b"")
        # Kind, offset in the file, address in memory, size.
        self._segments = [(kind, offset, address, length) for kind, _, offset, address, _, length, _, _ in rows]
        kinds = {kind for kind, _, _, _ in self._segments}
        self.dynamic, self.executable = _PT_DYNAMIC in kinds, _PT_INTERP in kinds
        self.entries = list(self._dynamic_entries())
        self.tags = dict(self.entries)

    def _read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > self._size:
            raise ElfError(f"{size} bytes at {offset} lie outside of the file ({self._size} bytes)")
        self._stream.seek(offset)
        return self._stream.read(size)

    def _dynamic_entries(self) -> Iterator[tuple[int, int]]:
        offset, size = next(((at, size) for kind, at, _, size in self._segments if kind == _PT_DYNAMIC), (0, 0))
        count = size // 16
        if count > _MOST_DYNAMIC_ENTRIES:
            raise ElfError(f"a dynamic section of {count} entries is not to be believed")
        for tag, value in struct.iter_unpack("<qQ", self._read(offset, count * 16)):
            if tag == _DT_NULL:
                return
            yield tag, value

    def bytes_at(self, tag: int, size: int, skip: int = 0) -> bytes:
        """`size` bytes of the table that this tag points to, `skip` bytes into it. Raises ElfError."""
        if tag not in self.tags:
            raise ElfError(f"its dynamic section has no entry {tag:#x}")
        address = self.tags[tag] + skip
        for kind, offset, begin, length in self._segments:
            if kind == _PT_LOAD and begin <= address < begin + length:
                return self._read(offset + address - begin, size)
        raise ElfError(f"address {address:#x} lies in no loaded segment")

    def strings(self) -> bytes:
        """The names that others point into. Raises ElfError."""
        if DT_STRTAB not in self.tags or _DT_STRSZ not in self.tags:
            raise ElfError("its dynamic section names no string table")
        return self.bytes_at(DT_STRTAB, self.tags[_DT_STRSZ])


def read(path: str | Path) -> Elf:
    """Read a file. Raises ElfError if it is no usable ELF file, OSError if it can't be opened."""
    with Path(path).open("rb") as stream:
        return parse(stream)


def parse(stream: BinaryIO) -> Elf:
    """Read a seekable stream. Raises ElfError."""
    table = DynamicTable(stream)
    strings = table.strings() if table.entries else b""

    def texts(tag: int) -> tuple[str, ...]:
        values = (value for found, value in table.entries if found == tag)
        return tuple(text_at(strings, value, _LONGEST_STRING).decode("utf-8", "replace") for value in values)

    def folders(tag: int) -> tuple[str, ...]:
        return tuple(folder for text in texts(tag) for folder in text.split(":") if folder)

    return Elf(
        machine=table.machine,
        soname="".join(texts(_DT_SONAME)[:1]),
        needed=texts(_DT_NEEDED),
        rpath=folders(_DT_RPATH),
        runpath=folders(_DT_RUNPATH),
        dynamic=table.dynamic,
        executable=table.executable,
    )


def machine(data: Any) -> int:
    """e_machine of a file in memory or mapped. Raises ElfError."""
    return _file_header(data)[1]


def sections(data: Any) -> Iterator[Section]:
    """The section headers of a file in memory or mapped, in their order. Raises ElfError."""
    rows, names = _section_rows(data)
    for name, kind, flags, _, offset, length, link, _, _, _ in rows:
        begin = rows[names][4] + name
        end = data.find(b"\0", begin, begin + _LONGEST_STRING)
        if end < 0:
            raise ElfError("a section's name does not end")
        yield Section(
            name=data[begin:end].decode("utf-8", "replace"),
            kind=kind,
            flags=flags,
            offset=offset,
            size=length if kind != _SHT_NOBITS else 0,
            link=link,
        )


def symbol_table(data: Any) -> tuple[Iterator[tuple[int, ...]], bytes]:
    """Rows (name, info, other, section, value, size) of the first symbol table of a file in memory, and the strings for
    their names. Raises ElfError.
    """
    rows, _ = _section_rows(data)
    row = next((row for row in rows if row[1] == _SHT_SYMTAB), None)
    if row is None or row[6] >= len(rows):
        raise ElfError("it has no symbol table")
    symbols, strings = (data[one[4] : one[4] + one[5]] if one[1] != _SHT_NOBITS else b"" for one in (row, rows[row[6]]))
    return SYMBOL.iter_unpack(symbols[: len(symbols) // SYMBOL.size * SYMBOL.size]), bytes(strings)


def is_32bit(data: bytes) -> bool:
    """Whether a file that begins so is one that no 64-bit process can load."""
    return data.startswith(MAGIC + b"\x01")


def _section_rows(data: Any) -> tuple[list[tuple[int, ...]], int]:
    """The section headers, and the number of the one whose section has their names. Each leads to bytes of the file."""
    header = _file_header(data)
    table, size, count, names = header[5], header[10], header[11], header[12]
    if count and (size != _SECTION.size or table + count * size > len(data) or names >= count):
        raise ElfError(f"{count} section headers at {table} are not to be believed")
    rows = list(_SECTION.iter_unpack(data[table : table + count * size])) if count else []
    for row in rows:
        if row[4] + row[5] > len(data) and row[1] != _SHT_NOBITS:
            raise ElfError(f"a section of {row[5]} bytes at {row[4]} lies outside of the file")
    return rows, names


def headers(data: Any) -> list[tuple[int, int]]:
    """Where (begin, end) a file in memory or mapped has its own header and both tables of headers. Raises ElfError."""
    header = _file_header(data)
    segments, sections, (segment, segment_count, section, section_count) = header[4], header[5], header[8:12]
    tables = [(segments, segments + segment * segment_count), (sections, sections + section * section_count)]
    return [(0, HEADER_BYTES), *tables]


def _file_header(data: Any) -> tuple[int, ...]:
    if data[:4] != MAGIC or data[4:6] != b"\x02\x01" or len(data) < HEADER_BYTES:
        raise ElfError("it is no 64-bit little-endian ELF file")
    return _HEADER.unpack(data[16:HEADER_BYTES])


def text_at(strings: bytes, offset: int, longest: int = 1 << 20) -> bytes:
    """What a string table has from here to the next zero. Raises ElfError."""
    end = strings.find(b"\0", offset, offset + longest)
    if offset >= len(strings) or end < 0:
        raise ElfError(f"string {offset} lies outside of the string table ({len(strings)} bytes)")
    return strings[offset:end]
