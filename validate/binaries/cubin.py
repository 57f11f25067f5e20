"""What the header of a compiled kernel says. (Entries of fat binaries: fatbin.py, whose bytes are the pruner's key.)"""

import struct
from collections.abc import Mapping
from typing import Any

EM_CUDA = 190
_ARCH_IN_SECOND_BYTE = 8
"""From this ABI version on (ptxas 12.8 for sm_100, 12.9 on for sm_90a) e_flags hold the arch in bits 8 to 15, before
that in bits 0 to 7. Measured on what Triton 3.1 to 3.9 made for sm_50 to sm_121."""


def cubin_facts(content: bytes) -> Mapping[str, Any]:
    """Size, ELF machine and the arch (90 for sm_90) the header names; machine and arch are None for anything else."""
    facts = {"bytes": len(content), "machine": None, "arch": None}
    if len(content) < 64 or content[:5] != b"\x7fELF\x02":
        return facts
    abi = content[8]
    (machine,) = struct.unpack_from("<H", content, 18)
    (flags,) = struct.unpack_from("<I", content, 48)
    arch = (flags >> 8 if abi >= _ARCH_IN_SECOND_BYTE else flags) & 0xFF
    return {**facts, "machine": machine, "abi": abi, "flags": f"{flags:#x}", "arch": arch}
