"""Make small fat binaries: cubins with kernels of a given size, packed as nvcc's fatbinary does."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LZ4, SPECIFIC, FAMILY = 0x2000, 0x100000, 0x200000
"""Flags of entries: compressed; for exactly one architecture; for a family."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """One entry: machine code of `kernels` (name -> bytes of code), or PTX."""

    arch: int
    kernels: Mapping[str, int]
    ptx: bool = False
    flags: int = 0x11
    emptied: bool = False
    """Zeros are stored in place of the code."""


def elf(sections: Sequence[tuple[str, int, int, bytes]], *, machine: int) -> bytes:
    """Return an ELF file with these sections: (name, kind, link, content)."""
    names = "\0" + "".join(f"{name}\0" for name, *_ in sections) + ".shstrtab\0"
    whole = [*sections, (".shstrtab", 3, 0, names.encode())]
    table, body = bytes(64), b""
    for name, kind, link, content in whole:
        at = names.index(f"\0{name}\0") + 1
        table += struct.pack(
            "<IIQQQQIIQQ", at, kind, 0, 0, 64 + len(body), len(content), link, 0, 1, 0
        )
        body += content
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    end = 64 + len(body)
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, end, 0, 64, 0, 0, 64, len(whole) + 1, len(whole)
    )
    return ident + header + body + table


def cubin(kernels: Mapping[str, int]) -> bytes:
    """Return machine code with these kernels: name -> bytes."""
    strings, symbols = bytearray(1), bytearray(24)
    for name, size in kernels.items():
        symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0x10, 1, 0, size)
        strings += name.encode() + b"\0"
    # A function that only kernels call: it must not be taken for one.
    symbols += struct.pack("<IBBHQQ", 0, 0x12, 0, 1, 0, 64)
    return elf([(".strtab", 3, 0, bytes(strings)), (".symtab", 2, 1, bytes(symbols))], machine=190)


def lz4_literals(data: bytes) -> bytes:
    """Return a valid LZ4 block that compresses nothing."""
    count = len(data)
    if count < 15:
        return bytes([count << 4]) + data
    rest, more = count - 15, b""
    while rest >= 255:
        more, rest = more + b"\xff", rest - 255
    return b"\xf0" + more + bytes([rest]) + data


def entry(code: Code) -> bytes:
    """Return an entry of a region: its header, and the code with padding."""
    text = "".join(f".visible .entry {name}(\n)" for name in code.kernels).encode()
    whole = text if code.ptx else cubin(code.kernels)
    packed = lz4_literals(whole) if code.flags & LZ4 else whole
    stored = bytes(len(packed)) if code.emptied else packed
    padded = stored + bytes(-len(stored) % 8)
    compressed = len(stored) if code.flags & LZ4 else 0
    kind = 1 if code.ptx else 2
    numbers = (
        kind,
        257,
        64,
        len(padded),
        compressed,
        0,
        0,
        code.arch,
        0,
        code.flags,
        0,
        len(whole),
    )
    return struct.pack("<HHIQIIIIQQQQ", *numbers) + padded


def region(*codes: Code) -> bytes:
    """Return a region with an entry for each code."""
    entries = b"".join(entry(code) for code in codes)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def library(*regions: bytes, section: str = ".nv_fatbin") -> bytes:
    """Return an x86-64 library with these regions in one section."""
    return elf([(section, 1, 0, bytes(8).join(regions))], machine=62)
