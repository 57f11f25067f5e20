"""Read the dynamic symbols of an ELF file, and their versions, as the loader does.

Bounds are checked as in elf.py. Layouts: System V ABI chapter 5; GNU hash table: glibc,
elf/dl-lookup.c; symbol versions: Linux Standard Base, "Symbol Versioning".
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from validate.binaries.elf import SYMBOL, DynamicTable, ElfError, Symbol, read_symbols, text_at

# Tags of the dynamic section (elf.h): each points to a table or counts its entries.
_HASH, _SYMTAB = 4, 6
_GNU_HASH = 0x6FFFFEF5
_VERDEF, _VERDEFNUM = 0x6FFFFFFC, 0x6FFFFFFD
_VERNEED, _VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF

_LOCAL, _WEAK = 0, 2
"""STB_LOCAL and STB_WEAK."""
_HIDDEN_VISIBILITIES = (1, 2)
"""STV_INTERNAL and STV_HIDDEN."""
_OPTIONAL_VERSION = 2
"""VER_FLG_WEAK."""

# Rows of the tables of versions. Names are offsets in the string table. Offsets of rows and of the
# next entry count from where the entry itself begins.
_VERDEF_ENTRY = struct.Struct("<HHHHIII")
"""Elf64_Verdef: version, flags, index, count, hash, offset of the row with the name, next entry."""
_VERDEF_NAME = struct.Struct("<I")
"""The first field of Elf64_Verdaux: the name."""
_VERNEED_ENTRY = struct.Struct("<HHIII")
"""Elf64_Verneed: version, number of rows, name of the library, offsets of first row, next entry."""
_VERNEED_ROW = struct.Struct("<IHHII")
"""Elf64_Vernaux: hash, flags, index, name, offset of the next row from where this one begins."""

_MOST_SYMBOLS = 1 << 24
_MOST_VERSIONS = 4096
"""Higher counts are taken for damage of the file."""


@dataclass(frozen=True, kw_only=True)
class Symbols:
    """What a file exports to others and needs from them."""

    exports: frozenset[bytes]
    undefined: frozenset[bytes]
    """Symbols that another file must define. Weak ones, which may stay undefined, are left out."""
    defined_versions: frozenset[str]
    """`GLIBC_2.36`; the file's own name among them."""
    needed_versions: Mapping[str, frozenset[str]]
    """DT_NEEDED name -> versions that this library must define."""


def read(path: str | Path) -> Symbols:
    """Read a file. Raises ElfError if it is damaged, and OSError if it can't be opened."""
    with Path(path).open("rb") as stream:
        return parse(stream)


def parse(stream: BinaryIO) -> Symbols:
    """Return the dynamic symbols of the ELF file in a seekable stream.

    Everything is empty if the file has no dynamic section. Local and unnamed symbols are left out,
    and so are undefined ones that may stay so (weak). Raises ElfError if the file is damaged.
    """
    table = DynamicTable(stream)
    if not table.tags:
        return Symbols(
            exports=frozenset(),
            undefined=frozenset(),
            defined_versions=frozenset(),
            needed_versions={},
        )

    strings = table.strings()
    exports, undefined = [], []
    for symbol in _symbols(table):
        # ELF64_ST_BIND and ELF64_ST_VISIBILITY.
        binding = symbol.info >> 4
        visibility = symbol.other & 3
        # A symbol without a section is one that another file must define.
        is_defined_here = symbol.section != 0

        if binding == _LOCAL or not symbol.name_offset:
            continue
        if is_defined_here and visibility not in _HIDDEN_VISIBILITIES:
            exports.append(text_at(strings, symbol.name_offset))
        elif not is_defined_here and binding != _WEAK:
            undefined.append(text_at(strings, symbol.name_offset))

    return Symbols(
        exports=frozenset(exports),
        undefined=frozenset(undefined),
        defined_versions=frozenset(_defined_versions(table, strings)),
        needed_versions=dict(_needed_versions(table, strings)),
    )


def _symbols(table: DynamicTable) -> Iterator[Symbol]:
    """Yield the rows of the table of dynamic symbols. Raises ElfError."""
    return read_symbols(table.bytes_at(_SYMTAB, _count_symbols(table) * SYMBOL.size))


def _count_symbols(table: DynamicTable) -> int:
    """Return how many dynamic symbols there are.

    The symbol table does not say how long it is, but the hash tables do. Raises ElfError for a
    count that only a damaged file has.
    """
    count = 0
    if _HASH in table.tags:
        # The second number of the table says how many chains it has. There is one for each symbol.
        (count,) = struct.unpack("<I", table.bytes_at(_HASH, 4, skip=4))
    elif _GNU_HASH in table.tags:
        count = _count_by_gnu_hash(table)
    if count > _MOST_SYMBOLS:
        raise ElfError(f"{count} symbols are not to be believed")
    return int(count)


def _count_by_gnu_hash(table: DynamicTable) -> int:
    """Return how many symbols there are: one more than the last symbol of the GNU hash table.

    The table has, one after another: a header, a Bloom filter, one number a bucket (that of its
    first symbol), and one hash a symbol. A bucket's symbols follow one another, and the lowest bit
    of a hash marks the last of them. Symbols before `first` are in no bucket. Raises ElfError if
    the table is damaged.
    """
    bucket_count, first, bloom_count, _ = struct.unpack("<IIII", table.bytes_at(_GNU_HASH, 16))
    if bucket_count > _MOST_SYMBOLS or bloom_count > _MOST_SYMBOLS:
        raise ElfError("its symbol hash table is not to be believed")

    # The bucket with the highest number has the last symbol.
    buckets_offset = 16 + bloom_count * 8
    buckets = table.bytes_at(_GNU_HASH, bucket_count * 4, skip=buckets_offset)
    last: int = max(struct.unpack(f"<{bucket_count}I", buckets), default=0)
    if last < first:
        return int(first)

    # The lowest bit of a hash marks the last symbol of its bucket.
    hash_offset = buckets_offset + bucket_count * 4 + (last - first) * 4
    while last < _MOST_SYMBOLS:
        (symbol_hash,) = struct.unpack("<I", table.bytes_at(_GNU_HASH, 4, skip=hash_offset))
        if symbol_hash & 1:
            return last + 1
        last += 1
        hash_offset += 4
    raise ElfError("its symbol hash table does not end")


def _defined_versions(table: DynamicTable, strings: bytes) -> Iterator[str]:
    """Yield the versions of symbols that a file defines, such as `GLIBC_2.36`.

    `table` is the file's dynamic section, and `strings` its table of names. Linkers write the name
    of the file itself (`libc.so.6`) as the first version. Raises ElfError if the table of versions
    is damaged.
    """
    # An entry (Elf64_Verdef) points to rows (Elf64_Verdaux): the first has the version's name, and
    # further ones those of older versions that it includes. `offset` is where the entry begins, and
    # the offsets that it has count from there.
    offset = 0
    for _ in range(_count_versions(table, _VERDEF, _VERDEFNUM)):
        entry = table.bytes_at(_VERDEF, _VERDEF_ENTRY.size, skip=offset)
        *_, name_row, next_entry = _VERDEF_ENTRY.unpack(entry)
        name = table.bytes_at(_VERDEF, _VERDEF_NAME.size, skip=offset + name_row)
        (name_offset,) = _VERDEF_NAME.unpack(name)
        yield _version_text(strings, name_offset)
        offset += next_entry


def _needed_versions(table: DynamicTable, strings: bytes) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each library of which a file needs versions, with these versions (Elf64_Verneed).

    `table` is the file's dynamic section, and `strings` its table of names. Versions that may be
    missing are left out. Raises ElfError if the table of versions is damaged.
    """
    # `offset` is where an entry begins in the table. The offsets in the entry count from there.
    offset = 0
    for _ in range(_count_versions(table, _VERNEED, _VERNEEDNUM)):
        entry = table.bytes_at(_VERNEED, _VERNEED_ENTRY.size, skip=offset)
        _, version_count, library_offset, first_row, next_entry = _VERNEED_ENTRY.unpack(entry)

        versions = set()
        row_offset = offset + first_row
        for _ in range(min(version_count, _MOST_VERSIONS)):
            row = table.bytes_at(_VERNEED, _VERNEED_ROW.size, skip=row_offset)
            _, flags, _, name_offset, next_row = _VERNEED_ROW.unpack(row)
            if not flags & _OPTIONAL_VERSION:
                versions.add(_version_text(strings, name_offset))
            row_offset += next_row

        yield _version_text(strings, library_offset), frozenset(versions)
        offset += next_entry


def _count_versions(table: DynamicTable, table_tag: int, count_tag: int) -> int:
    """Return the number of entries of a version table; 0 if there is none.

    `table_tag` points to the table, `count_tag` has the number. Raises ElfError if it is absurd.
    """
    if table_tag not in table.tags:
        return 0
    count = table.tags.get(count_tag, 0)
    if count > _MOST_VERSIONS:
        raise ElfError(f"{count} versions are not to be believed")
    return count


def _version_text(strings: bytes, offset: int) -> str:
    """Return the name of a version or library at this offset of the string table."""
    return text_at(strings, offset).decode("utf-8", "replace")
