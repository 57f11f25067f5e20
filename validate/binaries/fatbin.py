"""Read CUDA fat binaries: which kernels an ELF file holds, for which GPU architectures.

The section `.nv_fatbin` is a row of regions, mostly one for each source file that nvcc compiled. A
region has entries, one for each architecture. An entry is machine code (a cubin, itself an ELF
file) or PTX, plain or compressed with LZ4 or zstd:

    .nv_fatbin   region          entry: header, cubin for sm_80
                                 entry: header, cubin for sm_90, compressed
                                 entry: header, PTX for compute_90
                 region          ...

`__nv_relfatbin` has the same form. It fed the device linker, and the driver never sees it, so
kernels are not looked for there.

NVIDIA documents none of this. The layout was read from the wheels of torch 2.5 to 2.11,
bitsandbytes and xformers. All numbers are checked before they are used: a damaged file raises
FatbinError, and never causes an endless loop or fills the memory.

Standard library only, without CUDA's toolkit: the pruner in a build step reads files with this
module, too. If you change it, `nox -s lock` must prune the wheels again (images/context/pruner.py).
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
from typing import Any, Literal, NamedTuple

from validate.binaries import elf
from validate.binaries.elf import ElfError, Section
from validate.compute_capability import runs_on

Buffer = bytes | mmap.mmap
"""A whole file, in memory or mapped. Parts of it are copied, never the whole."""

DRIVER_SECTIONS = (".nv_fatbin",)
"""Sections that the driver reads."""
ALL_SECTIONS = (*DRIVER_SECTIONS, "__nv_relfatbin")

_REGION_MAGIC = 0xBA55ED50
_REGION_HEADER = struct.Struct("<IHHQ")
_BEGIN_OF_REGION = struct.pack("<IHH", _REGION_MAGIC, 1, _REGION_HEADER.size)
"""The first bytes of every region that was seen."""
_REGION_ALIGNMENT = 8

_ENTRY_HEADER = struct.Struct("<HHIQIIIIQQQQ")
# Kinds of entries. Others are no code.
_PTX = 1
_MACHINE_CODE = (2, 16)
TAKEN_OUT = 0x80
"""The kind that pruning gives an entry whose code it took out. CUDA has no meaning for it: the
driver passes over such an entry and reports "no kernel image is available". For an entry of zeros
without this mark it reports "unknown error". (Both seen on an H100.)"""
_CODE_KINDS = (_PTX, *_MACHINE_CODE)
# Flags of entries.
_LZ4, _ZSTD = 0x2000, 0x8000
_ARCH_SPECIFIC, _FAMILY_SPECIFIC = 0x100000, 0x200000

_MOST_PADDING = 7
"""Bytes behind an entry's content: the next entry begins at a multiple of 8. No more was seen in
the libraries of torch 2.5.1, 2.7.1 and 2.11.0, of packages that go with them (bitsandbytes for CUDA
11.8 to 13.0 among them), and of NVIDIA for CUDA 12.4, 12.6 and 13.0. More means a damaged size: it
would make one entry of two, and pruning one would take out the other's code."""
_MOST_DECODED_BYTES = 1 << 30
"""The largest cubin that was seen (in cuBLASLt) is a tenth of this."""
_HIGHEST_LZ4_RATIO = 255
"""An LZ4 block of n bytes decodes to about this many times n at most."""
_CHUNK = 1 << 20

_EM_CUDA = 190
"""e_machine of cubins."""
# What marks a symbol of a cubin as a kernel: its type, and a bit of NVIDIA's own.
_SYMBOL_TYPE, _STT_FUNC = 0xF, 2
_STO_CUDA_ENTRY = 0x10
_PTX_KERNEL = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)")

_NVIDIA_LIBRARY = re.compile(
    r"lib(cu(blas|dart|dnn|dss|fft|file|pti|rand|solver|sparse|tensor)|nccl|npp|nv(?!fuser))"
)
"""Older torch wheels contain some of these libraries. nvFuser is PyTorch's."""

Compression = Literal["lz4", "zstd"]


class FatbinError(ValueError):
    """A file is no fat binary as CUDA 11 to 13 write them, or this machine can't decompress it."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The code of one region for one architecture."""

    is_ptx: bool
    """False: machine code."""
    arch: int
    """90 for sm_90."""
    variant: str
    """`a`: for exactly this architecture; `f`: for its family; empty: neither."""
    header_offset: int
    """Where its header begins in the file. The header begins with the kind, two bytes."""
    code_offset: int
    """Where its code begins in the file."""
    stored_size: int
    """Bytes of code in the file: compressed, if it is."""
    room: int
    """Bytes in the file for code and padding."""
    decoded_size: int
    """Bytes of code after decompression."""
    compression: Compression | None

    @property
    def kind(self) -> tuple[bool, int, str]:
        """Say what the code is and for which GPUs. Entries of one kind are alike to the driver."""
        return self.is_ptx, self.arch, self.variant

    def runs_on(self, target: int) -> bool:
        """Return whether a GPU of `target` (90 for sm_90) can run it."""
        return runs_on(
            divmod(self.arch, 10), divmod(target, 10), ptx=self.is_ptx, variant=self.variant
        )


@dataclass(frozen=True)
class Region:
    """Entries that were compiled from one source."""

    offset: int
    """Where it begins in the file."""
    entries: tuple[Entry, ...]
    """What the driver chooses from."""
    taken_out: tuple[Entry, ...] = ()
    """Entries that pruning has marked and emptied. Whether they were PTX is not known any more:
    `is_ptx` is False."""
    hidden: tuple[Entry, ...] = ()
    """Entries with the mark of pruning that still have their code: the driver passes over it.
    Pruning leaves no such entries."""
    is_for_driver: bool = True
    """Whether it is in one of DRIVER_SECTIONS."""

    def best_entry(self, target: int) -> Entry | None:
        """Return the entry that the driver takes on a GPU of `target` (90 for sm_90).

        It takes machine code before PTX, then the nearest architecture, then `a` before `f` before
        plain code. None: no entry runs there.
        """
        usable = [entry for entry in self.entries if entry.runs_on(target)]
        return max(usable, key=_rank, default=None)

    def needed_entries(self, target: int) -> tuple[Entry, ...]:
        """Return the entries that a GPU of `target` has a use for.

        These are all machine code for exactly this architecture. If there is none, the best other
        entry stands in for it.
        """
        exact = [entry for entry in self.entries if not entry.is_ptx and entry.arch == target]
        if exact:
            return tuple(exact)

        best = self.best_entry(target)
        if best is None:
            return ()
        # A region may have several entries of one kind.
        return tuple(entry for entry in self.entries if entry.kind == best.kind)

    def hides_code_for(self, target: int) -> bool:
        """Return whether a GPU of `target` would have a use for hidden code, if it had no mark."""
        for entry in self.hidden:
            # The mark stands in place of the kind, so the code may be PTX or not.
            for is_ptx in (False, True):
                shown = replace(entry, is_ptx=is_ptx)
                region = replace(self, entries=(*self.entries, shown))
                if shown in region.needed_entries(target):
                    return True
        return False


def _rank(entry: Entry) -> tuple[bool, int, bool, bool]:
    """Return a key: of the entries that run on a GPU, the driver takes the one with the highest."""
    return not entry.is_ptx, entry.arch, entry.variant == "a", bool(entry.variant)


class _RegionHeader(NamedTuple):
    """The header of a region."""

    magic: int
    version: int
    size: int
    """Bytes of the header."""
    content_size: int
    """Bytes of all its entries."""


class _EntryHeader(NamedTuple):
    """The header of an entry. Nobody here knows what the fields `unknown_...` mean."""

    kind: int
    unknown_1: int
    size: int
    """Bytes of the header."""
    content_size: int
    """Bytes of code and padding."""
    compressed_size: int
    """Bytes of code, if it is compressed."""
    unknown_2: int
    unknown_3: int
    arch: int
    unknown_4: int
    flags: int
    unknown_5: int
    decoded_size: int
    """Bytes of code after decompression, if it is compressed."""


def read_regions(data: Buffer, section_names: Sequence[str] = DRIVER_SECTIONS) -> Iterator[Region]:
    """Yield the regions of an ELF file, without decompressing code.

    A file without device code has none. Raises FatbinError.
    """
    try:
        sections = list(elf.sections(data))
    except ElfError as error:
        raise FatbinError(str(error)) from error
    # Section headers can be stripped. Then device code can be seen, but not where it ends.
    if not sections and data.find(_BEGIN_OF_REGION) >= 0:
        raise FatbinError(
            "it has device code, but no section table, which alone says where that is"
        )
    for section in sections:
        if section.name in section_names:
            yield from _regions_of_section(data, section)


def read_kernels(data: Buffer, entry: Entry) -> dict[str, int]:
    """Return the kernels of an entry: mangled name -> bytes of machine code, which are 0 for PTX.

    Raises FatbinError if the code is damaged, or this machine can't decompress it.
    """
    stored = data[entry.code_offset : entry.code_offset + entry.stored_size]
    if entry.compression:
        code = _decompress(entry.compression, stored, entry.decoded_size)
    else:
        code = memoryview(stored)

    if entry.is_ptx:
        return {name.decode(): 0 for name in _PTX_KERNEL.findall(bytes(code))}
    try:
        return _kernels_of_cubin(code)
    except ElfError as error:
        raise FatbinError(str(error)) from error


def _kernels_of_cubin(cubin: memoryview) -> dict[str, int]:
    """Return the kernels of machine code: mangled name -> bytes. Raises FatbinError, ElfError."""
    if elf.machine(cubin) != _EM_CUDA:
        raise FatbinError("its machine code is not for CUDA")
    symbols, strings = elf.symbol_table(cubin)
    kernels = {}
    for symbol in symbols:
        # Functions that only kernels call lack the bit of entries.
        is_function = symbol.info & _SYMBOL_TYPE == _STT_FUNC
        if is_function and symbol.other & _STO_CUDA_ENTRY:
            name = elf.text_at(strings, symbol.name_offset).decode("utf-8", "replace")
            kernels[name] = symbol.size
    return kernels


def is_emptied(data: Buffer, entry: Entry) -> bool:
    """Return whether an entry has zeros in place of its code, as pruning leaves them."""
    begin, end = entry.code_offset, entry.code_offset + entry.room
    # Code begins with other bytes than zeros: this settles most entries.
    if any(data[begin : min(begin + 64, end)]):
        return False
    for position in range(begin, end, _CHUNK):
        chunk = data[position : min(position + _CHUNK, end)]
        if chunk != bytes(len(chunk)):
            return False
    return True


def is_nvidia_library(distribution: str, file: str) -> bool:
    """Return whether a library is NVIDIA's own.

    `distribution`: the canonical name of the one that brings it, `nvidia-cublas-cu12`; may be
    empty. `file`: its path or name; libraries of NVIDIA in other distributions are known by it.
    """
    file_name = file.rpartition("/")[2]
    return distribution.startswith("nvidia-") or bool(_NVIDIA_LIBRARY.match(file_name))


def _regions_of_section(data: Buffer, section: Section) -> Iterator[Region]:
    """Yield the regions of a section, which follow one another. Raises FatbinError."""
    position = section.offset
    end = section.offset + section.size
    while position < end:
        # Zeros between regions are padding.
        if not any(data[position : position + _REGION_ALIGNMENT]):
            position += _REGION_ALIGNMENT
            continue

        header = _RegionHeader._make(_unpack(_REGION_HEADER, data, position, end))
        if header.magic != _REGION_MAGIC or header.size < _REGION_HEADER.size:
            raise FatbinError(f"no fat-binary region begins at {position}")
        first_entry = position + header.size
        end_of_region = first_entry + header.content_size
        if end_of_region > end:
            raise FatbinError(f"the region at {position} ends outside of its section")

        is_for_driver = section.name in DRIVER_SECTIONS
        yield _read_region(data, position, first_entry, end_of_region, is_for_driver)
        position = end_of_region


def _read_region(
    data: Buffer, offset: int, first_entry: int, end: int, is_for_driver: bool
) -> Region:
    """Return the region at an offset, whose entries are data[first_entry:end]."""
    entries = []
    taken_out = []
    hidden = []
    for kind, entry in _read_entries(data, first_entry, end):
        if kind != TAKEN_OUT:
            entries.append(entry)
        elif is_emptied(data, entry):
            taken_out.append(entry)
        else:
            hidden.append(entry)
    return Region(
        offset,
        entries=tuple(entries),
        taken_out=tuple(taken_out),
        hidden=tuple(hidden),
        is_for_driver=is_for_driver,
    )


def _read_entries(data: Buffer, begin: int, end: int) -> Iterator[tuple[int, Entry]]:
    """Yield kind and entry for each of data[begin:end] that is code, or that pruning has marked.

    Other kinds are passed over. Raises FatbinError if an entry ends outside, or is damaged.
    """
    position = begin
    while position < end:
        header = _EntryHeader._make(_unpack(_ENTRY_HEADER, data, position, end))
        end_of_entry = position + header.size + header.content_size
        if header.size < _ENTRY_HEADER.size or end_of_entry > end:
            raise FatbinError(f"the entry at {position} does not fit into its region")

        entry = _make_entry(header, position)
        if entry.compression and entry.decoded_size > _MOST_DECODED_BYTES:
            raise FatbinError(f"the entry at {position} wants {entry.decoded_size} bytes")
        if header.kind in _CODE_KINDS:
            _require_code_fills_room(data, entry)
        if header.kind in _CODE_KINDS or header.kind == TAKEN_OUT:
            yield header.kind, entry
        position = end_of_entry


def _make_entry(header: _EntryHeader, position: int) -> Entry:
    """Return the entry whose header lies at this position in the file."""
    compression: Compression | None = None
    if header.flags & _LZ4:
        compression = "lz4"
    elif header.flags & _ZSTD:
        compression = "zstd"

    variant = ""
    if header.flags & _ARCH_SPECIFIC:
        variant = "a"
    elif header.flags & _FAMILY_SPECIFIC:
        variant = "f"

    # The sizes before and after compression mean something only in compressed entries.
    return Entry(
        is_ptx=header.kind == _PTX,
        arch=header.arch,
        variant=variant,
        header_offset=position,
        code_offset=position + header.size,
        stored_size=header.compressed_size if compression else header.content_size,
        room=header.content_size,
        decoded_size=header.decoded_size if compression else header.content_size,
        compression=compression,
    )


def _require_code_fills_room(data: Buffer, entry: Entry) -> None:
    """Raise FatbinError unless the code of an entry ends where the entry does, but for padding.

    Plain PTX is not checked: it does not say where it ends.
    """
    code_size = entry.stored_size
    is_plain_cubin = not entry.compression and not entry.is_ptx
    if is_plain_cubin and not is_emptied(data, entry):
        # A cubin ends with one of its tables of headers.
        header = data[entry.code_offset : entry.code_offset + elf.HEADER_BYTES]
        try:
            code_size = max(end for _, end in elf.headers(header))
        except ElfError as error:
            raise FatbinError(
                f"the machine code of the entry at {entry.header_offset} is damaged: {error}"
            ) from error
    if not 0 <= entry.room - code_size <= _MOST_PADDING:
        raise FatbinError(
            f"the entry at {entry.header_offset} takes {entry.room} bytes, "
            f"and its content {code_size}"
        )


def _unpack(layout: struct.Struct, data: Buffer, position: int, end: int) -> tuple[Any, ...]:
    """Return the fields of a header in data[position:end]. Raises FatbinError if it is cut off."""
    if position + layout.size > end:
        raise FatbinError(f"a header at {position} is cut off")
    return layout.unpack(data[position : position + layout.size])


class _ScratchMemory(threading.local):
    """Memory to decompress into: a piece for each thread, which grows and is used again.

    To allocate new memory for each of thousands of entries takes half as long again, and keeps all
    other threads waiting.
    """

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(0)

    def at_least(self, size: int) -> ctypes.Array[ctypes.c_char]:
        """Return this thread's piece, made larger if it has less than `size` bytes."""
        if size > len(self.buffer):
            self.buffer = ctypes.create_string_buffer(size)
        return self.buffer


_SCRATCH = _ScratchMemory()


def _decompress(compression: Compression, stored: bytes, decoded_size: int) -> memoryview:
    """Return `stored` decompressed. The result is valid until this thread calls this again.

    Raises FatbinError if it is damaged: the result must have exactly `decoded_size` bytes.
    """
    # Refused before memory is taken for it.
    if compression == "lz4" and decoded_size > _HIGHEST_LZ4_RATIO * (len(stored) + 1):
        raise FatbinError(f"{len(stored)} bytes of LZ4 can't hold {decoded_size}")

    output = _SCRATCH.at_least(decoded_size)
    decode = _load_decoder(compression)
    # Both return the number of bytes that they wrote; for damaged data, another number.
    if compression == "lz4":
        # int LZ4_decompress_safe(const char *src, char *dst, int compressedSize, int dstCapacity)
        written = decode(stored, output, len(stored), decoded_size)
    else:
        # size_t ZSTD_decompress(void *dst, size_t dstCapacity, const void *src, size_t size)
        capacity, stored_size = ctypes.c_size_t(decoded_size), ctypes.c_size_t(len(stored))
        written = decode(output, capacity, stored, stored_size)
    if written != decoded_size:
        raise FatbinError(f"its {compression} data is damaged")
    return memoryview(output).cast("B")[:decoded_size]


@functools.cache
def _load_decoder(compression: Compression) -> Any:
    """Return the C function that decompresses, from a library of the system, as ctypes has it.

    Debian has both libraries, as apt and dpkg need them. Raises FatbinError where one is missing.
    """
    if compression == "lz4":
        library, function = "liblz4.so.1", "LZ4_decompress_safe"
    else:
        library, function = "libzstd.so.1", "ZSTD_decompress"
    try:
        decode = getattr(ctypes.CDLL(library), function)
    except (OSError, AttributeError) as error:
        raise FatbinError(
            f"it is compressed with {compression}, and this machine has no {library}"
        ) from error
    decode.restype = ctypes.c_int if compression == "lz4" else ctypes.c_size_t
    return decode
