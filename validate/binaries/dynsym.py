"""The dynamic symbols of an ELF file: what it exports, what it needs, and of which versions. As the loader sees them.

Bounds are checked as in elf.py. Layouts: System V ABI chapter 5; GNU hash table: glibc, elf/dl-lookup.c;
symbol versions: Linux Standard Base, "Symbol Versioning".
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from validate.binaries.elf import SYMBOL, DynamicTable, ElfError, text_at

_HASH, _SYMTAB = 4, 6
_GNU_HASH, _VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = (
    0x6FFFFEF5,
    0x6FFFFFFC,
    0x6FFFFFFD,
    0x6FFFFFFE,
    0x6FFFFFFF,
)
_LOCAL, _WEAK = 0, 2
_HIDDEN_VISIBILITIES = (1, 2)  # internal, hidden
_OPTIONAL_VERSION = 2  # VER_FLG_WEAK
_MOST_SYMBOLS = 1 << 24
_MOST_VERSIONS = 4096


@dataclass(frozen=True, kw_only=True)
class Symbols:
    """One file's side of dynamic linking."""

    exports: frozenset[bytes]
    undefined: frozenset[bytes]
    """Weak ones, which may stay undefined, are left out."""
    defined_versions: frozenset[str]
    """`GLIBC_2.36`; the file's own name among them."""
    needed_versions: Mapping[str, frozenset[str]]
    """NEEDED name -> versions that must be defined there."""


def read(path: str | Path) -> Symbols:
    """Read a file. Raises ElfError, and OSError if it can't be opened."""
    with Path(path).open("rb") as stream:
        return parse(stream)


def parse(stream: BinaryIO) -> Symbols:
    """Read a seekable stream. Raises ElfError."""
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
    for name, info, other, section, _, _ in _symbols(table):
        binding = info >> 4
        if binding == _LOCAL or not name:
            continue
        if section:
            if other & 3 not in _HIDDEN_VISIBILITIES:
                exports.append(text_at(strings, name))
        elif binding != _WEAK:
            undefined.append(text_at(strings, name))
    return Symbols(
        exports=frozenset(exports),
        undefined=frozenset(undefined),
        defined_versions=frozenset(name for _, name in _versions_by_index(table, strings)),
        needed_versions=dict(_needed_versions(table, strings)),
    )


def _symbols(table: DynamicTable) -> Iterator[tuple[int, ...]]:
    """Rows (name, info, other, section, value, size)."""
    return SYMBOL.iter_unpack(table.bytes_at(_SYMTAB, _count(table) * SYMBOL.size))


def _count(table: DynamicTable) -> int:
    """How many symbols there are: nothing says so but the hash tables."""
    count = 0
    if _HASH in table.tags:
        (count,) = struct.unpack("<I", table.bytes_at(_HASH, 4, 4))
    elif _GNU_HASH in table.tags:
        count = _count_by_gnu_hash(table)
    if count > _MOST_SYMBOLS:
        raise ElfError(f"{count} symbols are not to be believed")
    return int(count)


def _count_by_gnu_hash(table: DynamicTable) -> int:
    """The last chain's end: the lowest bit of a hash marks it. Without chains, all symbols come before the table's."""
    buckets, first, bloom, _ = struct.unpack("<IIII", table.bytes_at(_GNU_HASH, 16))
    if buckets > _MOST_SYMBOLS or bloom > _MOST_SYMBOLS:
        raise ElfError("its symbol hash table is not to be believed")
    at = 16 + bloom * 8
    last = max(
        (
            found
            for (found,) in struct.iter_unpack("<I", table.bytes_at(_GNU_HASH, buckets * 4, at))
        ),
        default=0,
    )
    if last < first:
        return int(first)
    at += buckets * 4 + (last - first) * 4
    while last < _MOST_SYMBOLS:
        (value,) = struct.unpack("<I", table.bytes_at(_GNU_HASH, 4, at))
        if value & 1:
            return int(last) + 1
        last, at = last + 1, at + 4
    raise ElfError("its symbol hash table does not end")


def _versions_by_index(table: DynamicTable, strings: bytes) -> Iterator[tuple[int, str]]:
    at = 0
    for _ in range(_bounded(table, _VERDEF, _VERDEFNUM)):
        _, _, index, _, _, aux, following = struct.unpack(
            "<HHHHIII", table.bytes_at(_VERDEF, 20, at)
        )
        (name,) = struct.unpack("<I", table.bytes_at(_VERDEF, 4, at + aux))
        yield index, text_at(strings, name).decode("utf-8", "replace")
        at += following


def _needed_versions(table: DynamicTable, strings: bytes) -> Iterator[tuple[str, frozenset[str]]]:
    at = 0
    for _ in range(_bounded(table, _VERNEED, _VERNEEDNUM)):
        _, count, file, aux, following = struct.unpack("<HHIII", table.bytes_at(_VERNEED, 16, at))
        versions, inner = set(), at + aux
        for _ in range(min(count, _MOST_VERSIONS)):
            _, flags, _, name, step = struct.unpack("<IHHII", table.bytes_at(_VERNEED, 16, inner))
            if not flags & _OPTIONAL_VERSION:
                versions.add(text_at(strings, name).decode("utf-8", "replace"))
            inner += step
        yield text_at(strings, file).decode("utf-8", "replace"), frozenset(versions)
        at += following


def _bounded(table: DynamicTable, where: int, how_many: int) -> int:
    count = table.tags.get(how_many, 0) if where in table.tags else 0
    if count > _MOST_VERSIONS:
        raise ElfError(f"{count} versions are not to be believed")
    return count
