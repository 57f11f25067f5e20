"""Read what the dynamic loader sees of an ELF file, and the file's sections and symbols.

The loader uses the program headers only, because section headers may be stripped from a file. So do
`read`, `parse` and DynamicTable. Sections are for what only they name, such as device code:
`sections` and `symbol_table`.

Every offset and count in a file is checked against the file's size before it is used: a damaged
file raises ElfError, and never causes an endless loop or fills the memory.

Layout: System V ABI, chapters 4 and 5, for 64 bits. Standard library only, because the pruner in a
build step reads files with this module, too. If you change it, `nox -s lock` must prune the wheels
again (images/context/pruner.py).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

Content = bytes | bytearray | mmap.mmap
"""A whole file, in memory or mapped."""
Part = bytes | bytearray | memoryview
"""A part of a file, or a file inside another one."""

MAGIC = b"\x7fELF"
"""The first bytes of every ELF file."""
_LITTLE_ENDIAN_64 = b"\x02\x01"
"""Follows MAGIC in a 64-bit little-endian file: ELFCLASS64, ELFDATA2LSB."""
_CLASS_32 = b"\x01"
"""Follows MAGIC in a 32-bit file."""
X86_64 = 62
"""e_machine of files for x86-64 processors."""

_IDENT_BYTES = 16
"""Size of e_ident, with which a file begins. _FILE_HEADER describes what follows it."""
_FILE_HEADER = struct.Struct("<HHIQQQIHHHHHH")
HEADER_BYTES = _IDENT_BYTES + _FILE_HEADER.size
_FILE_HEADER_FOR_LOADER = struct.Struct("<HHIQQQIHHH")
"""_FILE_HEADER without its last three fields, which are about section headers."""
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC_ENTRY = struct.Struct("<qQ")
SYMBOL = struct.Struct("<IBBHQQ")

# Kinds of sections and of program headers, and tags of the dynamic section (elf.h).
_SHT_SYMTAB, _SHT_NOBITS = 2, 8
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 1, 14, 15, 29
_DT_STRTAB, _DT_STRSZ = 5, 10

# More than this is taken for damage of the file.
_MOST_PROGRAM_HEADERS = 1024
_MOST_DYNAMIC_ENTRIES = 65536
_LONGEST_STRING = 4096
_LONGEST_SYMBOL_NAME = 1 << 20


class ElfError(ValueError):
    """The file is no ELF file that a 64-bit little-endian machine could load."""


class OtherClassError(ElfError):
    """The file is an ELF file for 32-bit or big-endian machines."""


@dataclass(frozen=True, kw_only=True)
class Elf:
    """What the loader sees of one file."""

    machine: int
    """e_machine: 62 is x86-64."""
    soname: str
    """Empty if the file has none."""
    needed: tuple[str, ...]
    """Names of the libraries that it needs: `libc.so.6`."""
    rpath: tuple[str, ...]
    """Folders of DT_RPATH."""
    runpath: tuple[str, ...]
    """Folders of DT_RUNPATH."""
    dynamic: bool
    """False for a file that the loader never sees: a static executable, an object file."""
    executable: bool
    """It names an interpreter: it is started as a process, not loaded into one."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a file. Sections are for tools; the loader does not use them."""

    name: str
    kind: int
    """sh_type."""
    flags: int
    offset: int
    """Where it begins in the file."""
    size: int
    """Its bytes in the file: 0 for a section that has none, such as .bss."""
    link: int
    """The index of a section that belongs to it: to a symbol table, its strings."""


class Symbol(NamedTuple):
    """A row of a symbol table (Elf64_Sym)."""

    name_offset: int
    """Where its name begins in the string table; 0: it has none."""
    info: int
    """Binding (upper four bits) and type (lower four)."""
    other: int
    """Visibility (lower two bits). Other bits have a meaning on some machines only."""
    section: int
    """The index of the section that defines it; 0: another file has to."""
    value: int
    size: int


class _FileHeader(NamedTuple):
    """The header of a file behind its first 16 bytes (Elf64_Ehdr)."""

    kind: int
    machine: int
    version: int
    entry_point: int
    program_headers_offset: int
    section_headers_offset: int
    flags: int
    own_size: int
    program_header_size: int
    program_header_count: int
    section_header_size: int
    section_header_count: int
    names_index: int
    """The index of the section that has the names of all sections."""


class _ProgramHeader(NamedTuple):
    """A part of a file that the loader uses (Elf64_Phdr)."""

    kind: int
    flags: int
    offset: int
    address: int
    """Where the loader puts it in memory."""
    physical_address: int
    size: int
    """Its bytes in the file."""
    memory_size: int
    alignment: int


class _SectionHeader(NamedTuple):
    """A row of the section headers (Elf64_Shdr). See Section."""

    name_offset: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    row_size: int


class DynamicTable:
    """The dynamic section of a file, and the tables that it points to.

    Its entries are (tag, value): what the loader has to know of the file. Where a value points to a
    table (of symbols, strings, versions), it is an address in memory.
    """

    def __init__(self, stream: BinaryIO) -> None:
        """Read a seekable stream. `entries` is empty if the file has no dynamic section.

        Raises ElfError; OtherClassError if the file is not 64-bit little-endian.
        """
        self._stream = stream
        self._size = stream.seek(0, os.SEEK_END)

        ident = self._read(0, _IDENT_BYTES)
        if ident[:4] != MAGIC:
            raise ElfError("it does not begin with the ELF magic")
        if ident[4:6] != _LITTLE_ENDIAN_64:
            raise OtherClassError("it is not 64-bit little-endian")

        header = self._read(_IDENT_BYTES, _FILE_HEADER_FOR_LOADER.size)
        fields = _FILE_HEADER_FOR_LOADER.unpack(header)
        _, self.machine, _, _, table_offset, _, _, _, row_size, count = fields
        if count > _MOST_PROGRAM_HEADERS or (count and row_size != _PROGRAM_HEADER.size):
            raise ElfError(f"{count} program headers of {row_size} bytes are not to be believed")

        # Without program headers, `table_offset` means nothing and may lie outside of the file.
        table = self._read(table_offset, count * row_size) if count else b""
        rows = _PROGRAM_HEADER.iter_unpack(table)
        self._segments = [_ProgramHeader._make(row) for row in rows]

        kinds = {segment.kind for segment in self._segments}
        self.dynamic = _PT_DYNAMIC in kinds
        self.executable = _PT_INTERP in kinds
        self.entries = list(self._dynamic_entries())
        """(tag, value) of each entry. DT_NEEDED stands once for each library."""
        self.tags = dict(self.entries)
        """Tag -> value, for tags that stand once."""

    def _read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file. Raises ElfError if it has not so many."""
        if offset < 0 or size < 0 or offset + size > self._size:
            raise ElfError(f"{size} bytes at {offset} lie outside of the file ({self._size} bytes)")
        self._stream.seek(offset)
        return self._stream.read(size)

    def _dynamic_entries(self) -> Iterator[tuple[int, int]]:
        """Yield tag and value of each entry of the dynamic section. Raises ElfError."""
        for segment in self._segments:
            if segment.kind == _PT_DYNAMIC:
                break
        else:
            return

        count = segment.size // _DYNAMIC_ENTRY.size
        if count > _MOST_DYNAMIC_ENTRIES:
            raise ElfError(f"a dynamic section of {count} entries is not to be believed")
        content = self._read(segment.offset, count * _DYNAMIC_ENTRY.size)
        for tag, value in _DYNAMIC_ENTRY.iter_unpack(content):
            # Marks the end. The section may have room for more entries behind it.
            if tag == _DT_NULL:
                return
            yield tag, value

    def bytes_at(self, tag: int, size: int, skip: int = 0) -> bytes:
        """Return `size` bytes of the table that a tag points to, from its byte `skip` on.

        Raises ElfError if there is no such tag, or it points to nothing in the file.
        """
        if tag not in self.tags:
            raise ElfError(f"its dynamic section has no entry {tag:#x}")
        address = self.tags[tag] + skip
        # The tag has an address in memory: find what the loader puts there.
        for segment in self._segments:
            is_inside = segment.address <= address < segment.address + segment.size
            if segment.kind == _PT_LOAD and is_inside:
                return self._read(segment.offset + address - segment.address, size)
        raise ElfError(f"address {address:#x} lies in no loaded segment")

    def strings(self) -> bytes:
        """Return the string table, into which names of libraries and symbols point.

        Raises ElfError if there is none.
        """
        if _DT_STRTAB not in self.tags or _DT_STRSZ not in self.tags:
            raise ElfError("its dynamic section names no string table")
        return self.bytes_at(_DT_STRTAB, self.tags[_DT_STRSZ])


def read(path: str | Path) -> Elf:
    """Read a file. Raises ElfError if it is no usable ELF file, OSError if it can't be opened."""
    with Path(path).open("rb") as stream:
        return parse(stream)


def parse(stream: BinaryIO) -> Elf:
    """Return what the loader sees of the file in a seekable stream. Raises ElfError."""
    table = DynamicTable(stream)
    strings = table.strings() if table.entries else b""

    sonames = _strings_of(table, strings, _DT_SONAME)
    return Elf(
        machine=table.machine,
        soname=sonames[0] if sonames else "",
        needed=_strings_of(table, strings, _DT_NEEDED),
        rpath=_folders_of(table, strings, _DT_RPATH),
        runpath=_folders_of(table, strings, _DT_RUNPATH),
        dynamic=table.dynamic,
        executable=table.executable,
    )


def _strings_of(table: DynamicTable, strings: bytes, wanted_tag: int) -> tuple[str, ...]:
    """Return the strings to which the entries with a tag point. Raises ElfError."""
    texts = []
    for tag, offset in table.entries:
        if tag == wanted_tag:
            text = text_at(strings, offset, _LONGEST_STRING)
            texts.append(text.decode("utf-8", "replace"))
    return tuple(texts)


def _folders_of(table: DynamicTable, strings: bytes, tag: int) -> tuple[str, ...]:
    """Return the folders of a search path (`$ORIGIN:/opt/lib`), without empty ones."""
    folders: list[str] = []
    for search_path in _strings_of(table, strings, tag):
        folders += [folder for folder in search_path.split(":") if folder]
    return tuple(folders)


def machine(data: Content | Part) -> int:
    """Return e_machine of a file. Raises ElfError."""
    return _file_header(data).machine


def is_32bit(data: bytes) -> bool:
    """Return whether a file that begins with these bytes is a 32-bit ELF file."""
    return data.startswith(MAGIC + _CLASS_32)


def sections(data: Content) -> Iterator[Section]:
    """Yield the sections of a file, in the order of their headers; none if these are stripped.

    Raises ElfError.
    """
    rows, names_index = _section_headers(data)
    for row in rows:
        begin = rows[names_index].offset + row.name_offset
        end = data.find(b"\0", begin, begin + _LONGEST_STRING)
        if end < 0:
            raise ElfError("a section's name does not end")
        yield Section(
            name=data[begin:end].decode("utf-8", "replace"),
            kind=row.kind,
            flags=row.flags,
            offset=row.offset,
            size=0 if row.kind == _SHT_NOBITS else row.size,
            link=row.link,
        )


def symbol_table(data: Content | Part) -> tuple[Iterator[Symbol], bytes]:
    """Return the symbols of a file, from its first symbol table, and the strings for their names.

    Dynamic symbols are read by dynsym.py. Raises ElfError, also if there is no symbol table.
    """
    rows, _ = _section_headers(data)
    tables = [row for row in rows if row.kind == _SHT_SYMTAB]
    if not tables or tables[0].link >= len(rows):
        raise ElfError("it has no symbol table")
    table = tables[0]
    strings = rows[table.link]
    return read_symbols(_content_of(data, table)), bytes(_content_of(data, strings))


def read_symbols(table: Part) -> Iterator[Symbol]:
    """Yield the symbols of a table. Bytes behind the last whole row are left out."""
    whole_rows = len(table) // SYMBOL.size
    return map(Symbol._make, SYMBOL.iter_unpack(table[: whole_rows * SYMBOL.size]))


def _content_of(data: Content | Part, section: _SectionHeader) -> Part:
    """Return the bytes of a section; empty if it has none in the file."""
    if section.kind == _SHT_NOBITS:
        return b""
    return data[section.offset : section.offset + section.size]


def _section_headers(data: Content | Part) -> tuple[list[_SectionHeader], int]:
    """Return the section headers, and the index of the section that has their names.

    Every section lies inside the file. Raises ElfError.
    """
    header = _file_header(data)
    count = header.section_header_count
    if not count:
        return [], header.names_index

    begin = header.section_headers_offset
    end = begin + count * header.section_header_size
    has_other_size = header.section_header_size != _SECTION_HEADER.size
    if has_other_size or end > len(data) or header.names_index >= count:
        raise ElfError(f"{count} section headers at {begin} are not to be believed")

    rows = [_SectionHeader._make(row) for row in _SECTION_HEADER.iter_unpack(data[begin:end])]
    for row in rows:
        if row.offset + row.size > len(data) and row.kind != _SHT_NOBITS:
            raise ElfError(
                f"a section of {row.size} bytes at {row.offset} lies outside of the file"
            )
    return rows, header.names_index


def headers(data: Content | Part) -> list[tuple[int, int]]:
    """Return where (begin, end) a file has its own header, its program and its section headers.

    Only the file's first HEADER_BYTES are read, and the places are not checked. Raises ElfError.
    """
    header = _file_header(data)
    segments_size = header.program_header_size * header.program_header_count
    sections_size = header.section_header_size * header.section_header_count
    return [
        (0, HEADER_BYTES),
        (header.program_headers_offset, header.program_headers_offset + segments_size),
        (header.section_headers_offset, header.section_headers_offset + sections_size),
    ]


def _file_header(data: Content | Part) -> _FileHeader:
    """Return the header of a file. Raises ElfError if it is not 64-bit little-endian."""
    begin = bytes(data[:6])
    if begin != MAGIC + _LITTLE_ENDIAN_64 or len(data) < HEADER_BYTES:
        raise ElfError("it is no 64-bit little-endian ELF file")
    return _FileHeader._make(_FILE_HEADER.unpack(data[_IDENT_BYTES:HEADER_BYTES]))


def text_at(strings: bytes, offset: int, longest: int = _LONGEST_SYMBOL_NAME) -> bytes:
    """Return the string at an offset of a string table, up to the next zero.

    Raises ElfError if it is not inside the table, or longer than `longest`.
    """
    end = strings.find(b"\0", offset, offset + longest)
    if offset >= len(strings) or end < 0:
        raise ElfError(f"string {offset} lies outside of the string table ({len(strings)} bytes)")
    return strings[offset:end]
