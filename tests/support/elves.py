"""Make small ELF files: a dynamic section with its strings, symbols and versions, nothing else."""

import struct
from collections.abc import Mapping, Sequence

_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 4, 5, 6, 10, 14, 15, 29
_VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_BASE = 0x1000


class _Strings:
    """A string table that grows."""

    def __init__(self) -> None:
        self.bytes = b"\0"

    def add(self, text: str) -> int:
        """Add a string, and return its offset."""
        offset = len(self.bytes)
        self.bytes += text.encode() + b"\0"
        return offset


def make(
    *,
    soname: str = "",
    needed: Sequence[str] = (),
    rpath: str = "",
    runpath: str = "",
    machine: int = 62,
    interpreter: bool = False,
    exports: Sequence[str] = (),
    undefined: Sequence[str] = (),
    weak: Sequence[str] = (),
    needs_versions: Mapping[str, Sequence[str]] | None = None,
    defines_versions: Sequence[str] = (),
) -> bytes:
    """Return a 64-bit little-endian shared object with these libraries, search paths and symbols.

    `weak`: undefined symbols that may stay so. `interpreter`: it is a program.
    """
    strings = _Strings()
    entries = [(_NEEDED, strings.add(name)) for name in needed]
    texts = [(_SONAME, soname), (_RPATH, rpath), (_RUNPATH, runpath)]
    entries += [(tag, strings.add(text)) for tag, text in texts if text]
    symbols = bytes(24)
    for names, binding, section in ((exports, 1, 1), (undefined, 1, 0), (weak, 2, 0)):
        for name in names:
            symbols += struct.pack("<IBBHQQ", strings.add(name), binding << 4 | 2, 0, section, 0, 0)
    tables = [
        (_HASH, struct.pack("<II", 1, len(symbols) // 24)),
        (_SYMTAB, symbols),
        (_VERNEED, _needs(needs_versions or {}, strings)),
        (_VERDEF, _defines(defines_versions, strings)),
    ]
    entries += [(_VERNEEDNUM, len(needs_versions))] if needs_versions else []
    entries += [(_VERDEFNUM, len(defines_versions))] if defines_versions else []
    tables = [(tag, content) for tag, content in (*tables, (_STRTAB, strings.bytes)) if content]
    segments = 3 if interpreter else 2
    dynamic_at = 64 + segments * 56
    at = dynamic_at + (len(entries) + len(tables) + 2) * 16
    for tag, content in tables:
        entries.append((tag, _BASE + at))
        at += len(content)
    entries += [(_STRSZ, len(strings.bytes)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    headers = struct.pack("<IIQQQQQQ", 1, 4, 0, _BASE, _BASE, at, at, _BASE)
    headers += struct.pack(
        "<IIQQQQQQ", 2, 4, dynamic_at, _BASE + dynamic_at, 0, len(dynamic), len(dynamic), 8
    )
    if interpreter:
        headers += struct.pack("<IIQQQQQQ", 3, 4, 0, 0, 0, 0, 0, 1)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, segments, 0, 0, 0
    )
    return header + headers + dynamic + b"".join(content for _, content in tables)


def _needs(versions: Mapping[str, Sequence[str]], strings: _Strings) -> bytes:
    """Return the table of needed versions: library -> versions (Elf64_Verneed)."""
    content = b""
    for name, wanted in versions.items():
        content += struct.pack(
            "<HHIII", 1, len(wanted), strings.add(name), 16, 16 + 16 * len(wanted)
        )
        content += b"".join(
            struct.pack("<IHHII", 0, 0, 2, strings.add(version), 16) for version in wanted
        )
    return content


def _defines(versions: Sequence[str], strings: _Strings) -> bytes:
    """Return the table of defined versions (Elf64_Verdef)."""
    return b"".join(
        struct.pack("<HHHHIII", 1, 0, index, 1, 0, 20, 28)
        + struct.pack("<II", strings.add(version), 0)
        for index, version in enumerate(versions, 1)
    )
