"""CUDA fat binaries: which kernels an ELF file holds, for which GPU architectures. Standard library, no toolkit.

The `.nv_fatbin` section is a row of regions, mostly one a translation unit; each holds one entry an architecture:
machine code (a cubin, itself an ELF file) or PTX, plain or compressed with LZ4 or zstd. `__nv_relfatbin` is built
alike: it fed the device linker, and the driver never sees it, so kernels are not looked for there.

All numbers are checked before use, so a corrupted file raises FatbinError and never loops or fills memory. NVIDIA
documents none of this: the layout was read from the wheels of torch 2.5 to 2.11, bitsandbytes and xformers.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from validate.binaries import elf
from validate.binaries.elf import ElfError, Section
from validate.compute_capability import runs_on

Buffer = bytes | mmap.mmap
"""Bytes of a file, an mmap included: they are sliced, never copied whole."""

LOADED = (".nv_fatbin",)
"""Sections that the driver reads."""
ALL = (*LOADED, "__nv_relfatbin")
_MAGIC = 0xBA55ED50
_REGION = struct.Struct("<IHHQ")
_USUAL_BEGIN = struct.pack("<IHH", _MAGIC, 1, _REGION.size)
"""Of every region seen."""
_ENTRY = struct.Struct("<HHIQIIIIQQQQ")
_PTX, _CUBINS = 1, (2, 16)
TAKEN_OUT = 0x80
"""The kind that pruning gives an entry whose code it took out: one that CUDA has no meaning for. The driver passes it
over and says "no kernel image is available"; of zeros alone it says "unknown error" (both seen on an H100)."""
_LZ4, _ZSTD = 0x2000, 0x8000
_ARCH_SPECIFIC, _FAMILY_SPECIFIC = 0x100000, 0x200000
_CHUNK = 1 << 20
_NVIDIAS = re.compile(r"lib(cu(blas|dart|dnn|dss|fft|file|pti|rand|solver|sparse|tensor)|nccl|npp|nv(?!fuser))")
"""Older torch wheels hold some of these libraries themselves. nvFuser is PyTorch's."""
_LARGEST_RATIO = 255
"""No LZ4 block of n bytes decodes to more than about this many times n."""
_MOST_BYTES = 1 << 30
"""The largest cubin seen (cuBLASLt's) is a tenth of this."""

_MOST_PADDING = 7
"""Bytes behind an entry's content: the next entry begins at a multiple of 8. No more was seen in the libraries of torch
2.5.1, 2.7.1 and 2.11.0, of what goes with them (bitsandbytes' for CUDA 11.8 to 13.0 among it), and of NVIDIA for CUDA
12.4, 12.6 and 13.0. More means a damaged size: it would make one entry of two, and what is taken out for one GPU would
be another's."""

_EM_CUDA = 190
_STT_FUNC, _STO_CUDA_ENTRY = 2, 0x10
_PTX_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)")


class FatbinError(ValueError):
    """This is no fat binary as CUDA 11 to 13 write them, or it needs a decoder that the machine lacks."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One region's code for one architecture."""

    ptx: bool
    arch: int
    """90 for sm_90."""
    variant: str
    """`a`: for this very architecture alone; `f`: for its family; empty: as usual."""
    at: int
    """Where its header begins, in the file: with its kind, two bytes."""
    offset: int
    """Of the stored bytes, in the file."""
    stored: int
    room: int
    """Bytes in the file: those stored, and padding."""
    whole: int
    """Bytes after decompression."""
    coding: str
    """`lz4`, `zstd`, or empty for plain."""

    def runs_on(self, target: int) -> bool:
        """Whether a GPU of `target` (90 for sm_90) can run it."""
        return runs_on(divmod(self.arch, 10), divmod(target, 10), ptx=self.ptx, variant=self.variant)


@dataclass(frozen=True)
class Region:
    """Entries that were compiled from one source."""

    offset: int
    entries: tuple[Entry, ...]
    taken_out: tuple[Entry, ...] = ()
    """What pruning marked: whether it was PTX is not known any more, nor does it matter."""
    hidden: tuple[Entry, ...] = ()
    """Marked like that, and still there: code that the driver passes over. Pruning leaves none such."""
    loaded: bool = True
    """Its section is one that the driver reads."""

    def serving(self, target: int) -> Entry | None:
        """The entry that the driver takes on a GPU of `target`: machine code before PTX, then the nearest arch."""
        fit = [entry for entry in self.entries if entry.runs_on(target)]
        return max(
            fit, key=lambda entry: (not entry.ptx, entry.arch, entry.variant == "a", bool(entry.variant)), default=None
        )

    def needed(self, target: int) -> tuple[Entry, ...]:
        """What a GPU of `target` has any use for: machine code for exactly it, else what serves it in its place."""
        exact = tuple(entry for entry in self.entries if not entry.ptx and entry.arch == target)
        if exact:
            return exact
        best = self.serving(target)
        alike = (best.ptx, best.arch, best.variant) if best else None
        return tuple(entry for entry in self.entries if (entry.ptx, entry.arch, entry.variant) == alike)

    def hides(self, target: int) -> bool:
        """Whether a GPU of `target` would have a use for hidden code, had it no mark."""
        # The mark stands where the kind stood, so it may be either.
        shown = (replace(entry, ptx=ptx) for entry in self.hidden for ptx in (False, True))
        return any(entry in replace(self, entries=(*self.entries, entry)).needed(target) for entry in shown)


def regions(data: Buffer, sections: Sequence[str] = LOADED) -> Iterator[Region]:
    """The fat-binary regions of an ELF file. Raises FatbinError; a file without device code has none."""
    try:
        found = list(elf.sections(data))
    except ElfError as error:
        raise FatbinError(str(error)) from error
    if not found and data.find(_USUAL_BEGIN) >= 0:
        raise FatbinError("it has device code, but no section table, which alone says where that is")
    for section in found:
        if section.name in sections:
            yield from _regions(data, section)


def kernels(data: Buffer, entry: Entry) -> dict[str, int]:
    """Bytes of machine code by (mangled) name of each kernel of an entry; 0 for those of PTX. Raises FatbinError."""
    stored = data[entry.offset : entry.offset + entry.stored]
    payload = _decoded(entry.coding, stored, entry.whole) if entry.coding else memoryview(stored)
    if entry.ptx:
        return {name.decode(): 0 for name in _PTX_ENTRY.findall(bytes(payload))}
    # Kernels are the functions that the symbol table marks as entries.
    try:
        if elf.machine(payload) != _EM_CUDA:
            raise FatbinError("its machine code is not for CUDA")
        symbols, strings = elf.symbol_table(payload)
        return {
            elf.text_at(strings, name).decode("utf-8", "replace"): size
            for name, kind, other, _, _, size in symbols
            if kind & 15 == _STT_FUNC and other & _STO_CUDA_ENTRY
        }
    except ElfError as error:
        raise FatbinError(str(error)) from error


def is_emptied(data: Buffer, entry: Entry) -> bool:
    """Whether nothing but zeros is stored: code taken out, with every offset left as it was."""
    end = entry.offset + entry.room
    if any(data[entry.offset : min(entry.offset + 64, end)]):
        return False
    chunks = (data[begin : min(begin + _CHUNK, end)] for begin in range(entry.offset, end, _CHUNK))
    return all(chunk == bytes(len(chunk)) for chunk in chunks)


def is_nvidias(distribution: str, file: str) -> bool:
    """Whether a library is NVIDIA's own, by the distribution that brings it (canonical name) or by the file's name."""
    return distribution.startswith("nvidia-") or bool(_NVIDIAS.match(file.rpartition("/")[2]))


def _regions(data: Buffer, section: Section) -> Iterator[Region]:
    position, end = section.offset, section.offset + section.size
    while position < end:
        if not any(data[position : position + 8]):  # padding: regions begin at multiples of 8
            position += 8
            continue
        magic, _, header, size = _unpack(_REGION, data, position, end)
        if magic != _MAGIC or header < _REGION.size:
            raise FatbinError(f"no fat-binary region begins at {position}")
        first, after = position + header, position + header + size
        if after > end:
            raise FatbinError(f"the region at {position} ends outside of its section")
        found = list(_entries(data, first, after))
        marked = {entry: is_emptied(data, entry) for kind, entry in found if kind == TAKEN_OUT}
        yield Region(
            position,
            entries=tuple(entry for kind, entry in found if kind != TAKEN_OUT),
            taken_out=tuple(entry for entry, emptied in marked.items() if emptied),
            hidden=tuple(entry for entry, emptied in marked.items() if not emptied),
            loaded=section.name in LOADED,
        )
        position = after


def _entries(data: Buffer, begin: int, end: int) -> Iterator[tuple[int, Entry]]:
    """Kind and content of each entry that is code, or was."""
    position = begin
    while position < end:
        kind, _, header, size, compressed, _, _, arch, _, flags, _, whole = _unpack(_ENTRY, data, position, end)
        payload, after = position + header, position + header + size
        if header < _ENTRY.size or after > end:
            raise FatbinError(f"the entry at {position} does not fit into its region")
        coding = "lz4" if flags & _LZ4 else "zstd" if flags & _ZSTD else ""
        if coding and whole > _MOST_BYTES:
            raise FatbinError(f"the entry at {position} wants {whole} bytes")
        entry = Entry(
            ptx=kind == _PTX,
            arch=arch,
            variant="a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else "",
            at=position,
            offset=payload,
            stored=compressed if coding else size,
            room=size,
            whole=whole if coding else size,
            coding=coding,
        )
        if kind in (_PTX, *_CUBINS):
            _require_its_size(data, entry)
        if kind in (_PTX, *_CUBINS, TAKEN_OUT):
            yield kind, entry
        position = after


def _require_its_size(data: Buffer, entry: Entry) -> None:
    """What is stored ends where the entry does, but for padding. Plain PTX alone does not say where it ends."""
    end = entry.stored
    if not entry.coding and not entry.ptx and not is_emptied(data, entry):
        try:
            end = max(end for _, end in elf.headers(data[entry.offset : entry.offset + elf.HEADER_BYTES]))
        except ElfError as error:
            raise FatbinError(f"the machine code of the entry at {entry.at} is damaged: {error}") from error
    if not 0 <= entry.room - end <= _MOST_PADDING:
        raise FatbinError(f"the entry at {entry.at} takes {entry.room} bytes, and its content {end}")


def _unpack(layout: struct.Struct, data: Buffer, position: int, end: int) -> tuple[Any, ...]:
    if position + layout.size > end:
        raise FatbinError(f"a header at {position} is cut off")
    return layout.unpack(data[position : position + layout.size])


_SCRATCH = threading.local()
"""Memory to decode into, one piece a thread. New memory for each of thousands of entries takes half as long again, and
no other thread runs meanwhile."""


def _decoded(coding: str, stored: bytes, whole: int) -> memoryview:
    """What was packed, until this thread asks for the next."""
    if coding == "lz4" and whole > _LARGEST_RATIO * (len(stored) + 1):
        raise FatbinError(f"{len(stored)} bytes of LZ4 can't hold {whole}")
    if whole > len(getattr(_SCRATCH, "memory", b"")):
        _SCRATCH.memory = ctypes.create_string_buffer(whole)
    output, decode = _SCRATCH.memory, _decoder(coding)
    if coding == "lz4":
        size = decode(stored, output, len(stored), whole)
    else:
        size = decode(output, ctypes.c_size_t(whole), stored, ctypes.c_size_t(len(stored)))
    if size != whole:
        raise FatbinError(f"its {coding} data is damaged")
    return memoryview(output).cast("B")[:whole]


@functools.cache
def _decoder(coding: str) -> Any:
    """Debian's apt and dpkg bring these libraries."""
    library, function, result = {
        "lz4": ("liblz4.so.1", "LZ4_decompress_safe", ctypes.c_int),
        "zstd": ("libzstd.so.1", "ZSTD_decompress", ctypes.c_size_t),
    }[coding]
    try:
        found = getattr(ctypes.CDLL(library), function)
    except (OSError, AttributeError) as error:
        raise FatbinError(f"it is compressed with {coding}, and this machine has no {library}") from error
    found.restype = result
    return found
