"""Makes small ELF files for tests: a dynamic section, its strings, and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 10, 14, 15, 29
_BASE = 0x1000


def make(
    *,
    soname: str = "",
    needed: Sequence[str] = (),
    rpath: str = "",
    runpath: str = "",
    machine: int = 62,
    interpreter: bool = False,
) -> bytes:
    """A 64-bit little-endian shared object that names these libraries and search paths."""
    strings = b"\0"
    entries: list[tuple[int, int]] = []
    texts = [(_NEEDED, name) for name in needed]
    texts += [(tag, text) for tag, text in ((_SONAME, soname), (_RPATH, rpath), (_RUNPATH, runpath)) if text]
    for tag, text in texts:
        entries.append((tag, len(strings)))
        strings += text.encode() + b"\0"
    segments = 3 if interpreter else 2
    dynamic_at = 64 + segments * 56
    strings_at = dynamic_at + (len(entries) + 3) * 16
    entries += [(_STRTAB, _BASE + strings_at), (_STRSZ, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    size = strings_at + len(strings)
    headers = struct.pack("<IIQQQQQQ", 1, 4, 0, _BASE, _BASE, size, size, _BASE)
    headers += struct.pack("<IIQQQQQQ", 2, 4, dynamic_at, _BASE + dynamic_at, 0, len(dynamic), len(dynamic), 8)
    if interpreter:
        headers += struct.pack("<IIQQQQQQ", 3, 4, 0, 0, 0, 0, 0, 1)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, segments, 0, 0, 0)
    return header + headers + dynamic + strings
