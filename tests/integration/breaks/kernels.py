"""kernels.py {relabel|stub|empty} LIBRARY ARCH PATTERN: break the device code of matching kernels.

It runs inside an image, and writes the new hash into RECORD, so that only the code itself tells.
`relabel`: the code is for an architecture that does not exist; `stub`: kernels have next to no
code; `empty`: zeros are in place of the code.
"""

import fnmatch
import struct
import sys
from pathlib import Path

import record  # type: ignore[import-not-found]

sys.path.insert(0, "/run/suite")
from validate.binaries import elf, fatbin

STUB_BYTES = 128
NO_SUCH_ARCH = 990


def broken(data: bytes, how: str, arch: int, pattern: str) -> bytes:
    """Return a library with broken code for `arch` (90 for sm_90) in all regions that match."""
    out = bytearray(data)
    for region in fatbin.read_regions(data):
        names: set[str] = set()
        for entry in region.entries:
            if not entry.is_ptx:
                names.update(fatbin.read_kernels(data, entry))
        if not fnmatch.filter(names, pattern):
            continue
        for entry in region.entries:
            if how == "relabel" and entry.runs_on(arch):
                struct.pack_into("<I", out, entry.header_offset + 28, NO_SUCH_ARCH)
            elif how == "empty" and entry.arch == arch:
                out[entry.code_offset : entry.code_offset + entry.stored_size] = bytes(
                    entry.stored_size
                )
            elif how == "stub" and entry.arch == arch and not entry.is_ptx:
                _shrink(
                    out,
                    entry.code_offset,
                    data[entry.code_offset : entry.code_offset + entry.stored_size],
                    pattern,
                )
    return bytes(out)


def _shrink(out: bytearray, offset: int, cubin: bytes, pattern: str) -> None:
    """Give matching kernels of an uncompressed cubin a stub's size, in its symbol table.

    `offset`: where the cubin lies in the library.
    """
    sections = list(elf.sections(cubin))
    table = next(section for section in sections if section.kind == 2)
    strings = sections[table.link]
    for at in range(table.offset, table.offset + table.size, 24):
        name, kind, other = struct.unpack_from("<IBB", cubin, at)
        text = cubin[strings.offset + name : cubin.index(b"\0", strings.offset + name)].decode()
        if kind & 15 == 2 and other & 16 and fnmatch.fnmatchcase(text, pattern):
            struct.pack_into("<Q", out, offset + at + 16, STUB_BYTES)


def main() -> None:
    how, library, arch, pattern = sys.argv[1:]
    record.write(Path(library), broken(Path(library).read_bytes(), how, int(arch), pattern))


main()
