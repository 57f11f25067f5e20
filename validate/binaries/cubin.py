"""Read the header of a compiled CUDA kernel (a cubin).

Fat binaries, which hold several of them, are read by fatbin.py.
"""

import struct
from typing import TypedDict

EM_CUDA = 190
"""e_machine of an ELF file with code for NVIDIA's GPUs."""
_HEADER_BYTES = 64
_ABI_VERSION_OFFSET, _MACHINE_OFFSET, _FLAGS_OFFSET = 8, 18, 48
"""Where a 64-bit ELF header has EI_ABIVERSION, e_machine and e_flags (System V ABI, chapter 4)."""
_ARCH_IN_SECOND_BYTE = 8
"""From this ABI version on (ptxas 12.8 for sm_100, 12.9 on for sm_90a) e_flags hold the arch in
bits 8 to 15, before that in bits 0 to 7. Measured on what Triton 3.1 to 3.9 made for sm_50 to
sm_121."""


class CubinFacts(TypedDict, total=False):
    """What the header of a file says.

    `abi` and `flags` are left out of files that are no 64-bit ELF files.
    """

    bytes: int
    """Size of the file."""
    machine: int | None
    """e_machine: EM_CUDA for a cubin; None: it is no 64-bit ELF file."""
    abi: int
    flags: str
    """e_flags, in hexadecimal."""
    arch: int | None
    """90 for sm_90; None: it is no 64-bit ELF file."""


def cubin_facts(content: bytes) -> CubinFacts:
    """Return what the header of a file says, which may be a cubin or anything else.

    `content` is the whole file. `machine` is the ELF header's number of the processor, `arch` the
    GPU's architecture: 90 for sm_90. A file that is no 64-bit ELF file gives only the size in
    bytes; `machine` and `arch` are then None.
    """
    # The fifth byte says how many bits the file is for: 2 means 64.
    is_elf = len(content) >= _HEADER_BYTES and content.startswith(b"\x7fELF\x02")
    if not is_elf:
        return {"bytes": len(content), "machine": None, "arch": None}

    abi = content[_ABI_VERSION_OFFSET]
    (machine,) = struct.unpack_from("<H", content, _MACHINE_OFFSET)
    (flags,) = struct.unpack_from("<I", content, _FLAGS_OFFSET)
    # Newer cubins have the architecture in the second byte of e_flags, older ones in the first.
    arch = flags >> 8 if abi >= _ARCH_IN_SECOND_BYTE else flags
    return {
        "bytes": len(content),
        "machine": machine,
        "arch": arch & 0xFF,
        "abi": abi,
        "flags": f"{flags:#x}",
    }
