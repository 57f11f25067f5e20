"""instructions: no library uses AVX-512, or SVE on AArch64, without a check of the processor. Such a library dies of
SIGILL where the processor lacks it.

The suite has no disassembler. It reads two things from a file's machine code: the number of AVX-512 instructions (the
EVEX prefix, which has no other use in 64-bit code, before common vector opcodes), and whether the file checks the
processor (CPUID with a leaf set just before, or a call to a library that checks). A compiler with `-mavx512f` or
`-march=native` emits the instructions without the check. A file with a check is taken to obey it: the probe finds code
that was built for the builder's machine, not a wrong dispatcher.

On AArch64, an instruction is a word of four bytes, and bits 25 to 28 of SVE's are 0010 (Arm Architecture Reference
Manual, C4.1 "A64 instruction set encoding"); a file asks the kernel (getauxval), or reads an ID register.

Four healthy images have at most 1 such instruction in 50 MB; gcc's `-mavx512f` emits 2 for one small loop.
"""

import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from validate.binaries import dynsym, elf
from validate.binaries.elf import ElfError
from validate.binaries.loader import AARCH64, Machine, machine_named, objects
from validate.checks import Settings
from validate.checks.static.files import size
from validate.claims import Claim
from validate.environment import installed
from validate.harness.forked import on_all_cores
from validate.judging import Finding, conclude, failed, listed

SETTINGS = Settings(reads_files_only=True)

_EXECUTABLE = 4  # SHF_EXECINSTR
_AVX512 = re.compile(
    rb"\x62"
    rb"[\x01-\x03\x11-\x13\x21-\x23\x31-\x33\x41-\x43\x51-\x53\x61-\x63\x71-\x73"
    rb"\x81-\x83\x91-\x93\xa1-\xa3\xb1-\xb3\xc1-\xc3\xd1-\xd3\xe1-\xe3\xf1-\xf3]"
    rb"[\x04-\x07\x0c-\x0f\x14-\x17\x1c-\x1f\x24-\x27\x2c-\x2f\x34-\x37\x3c-\x3f\x44-\x47\x4c-\x4f\x54-\x57\x5c-\x5f"
    rb"\x64-\x67\x6c-\x6f\x74-\x77\x7c-\x7f\x84-\x87\x8c-\x8f\x94-\x97\x9c-\x9f\xa4-\xa7\xac-\xaf\xb4-\xb7\xbc-\xbf"
    rb"\xc4-\xc7\xcc-\xcf\xd4-\xd7\xdc-\xdf\xe4-\xe7\xec-\xef\xf4-\xf7\xfc-\xff]"
    rb"[\x08\x28\x40\x48\x58]"
    rb"[\x10\x11\x18\x19\x28\x29\x51\x54\x57-\x59\x5c-\x5f\x6f\x7f\x98\xa8\xb8\xbc\xef\xfe]"
)
"""P0 with a known opcode map and its zero bits, P1 with its one bit, P2 without a mask, then moves, sums, products,
fused products (Intel SDM volume 2, 2.7 "EVEX")."""

_CPUID = re.compile(
    rb"(?:(?:\xb8[\x00-\x1f]\x00\x00[\x00\x80]|[\x31\x33]\xc0)[\x00-\xff]{0,24}?"
    rb"|\x89[\xc8\xd0\xd8\xe8\xf0\xf8](?:[\x31\x33]\xc9|\x89[\xc1\xd1\xd9\xe9\xf1\xf9])[\x00-\xff]{0,3}?)\x0f\xa2",
    re.DOTALL,
)
"""With the leaf set just before; or leaf and subleaf from registers, in a function that is given them (x264, dav1d)."""
_ASKING = re.compile(
    rb"__cpu_model|__cpu_indicator_init|cpuinfo_.*|(?:.*_)?get_cpu_(?:flags|features)\w*|__cpu_features2?|getauxval|.*is_avx512.*"
)
"""Functions and data by which other libraries tell what the processor can do."""

_SVE = bytes(byte for byte in range(256) if byte & 0x1E == 0x04)
"""The last byte of an SVE instruction's word, whose bits are 24 to 31."""
_VECTOR_LENGTH = re.compile(rb"\xe0\xe3\xe0\x04")
"""`cntd x0`: libgcc's unwinder, linked into many libraries, runs it where a frame has saved SVE registers, and nowhere
else (gcc, libgcc/config/aarch64/value-unwind.h). No loop does with it alone."""
_ID_REGISTER = re.compile(rb"[\x00-\x1f\x80-\x9f\xa0-\xbf\xe0-\xff][\x00-\xff]\x38\xd5")
"""MRS from ID_AA64PFR0_EL1 and its like: op0 3, op1 0, CRn 0, which Linux lets programs read (Linux,
Documentation/arch/arm64/cpu-feature-registers.rst)."""

_MOST_LISTED = 20


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given, _, everything = installed.of_user()
    owners = installed.names_of_owners(everything)
    programs = objects(installed.locations(everything), owners)
    paths = sorted({os.path.realpath(path) for path in programs}, key=size, reverse=True)
    limits = [(int(claim.expect["most"]), int(claim.expect["per_bytes"])) for claim in claims]
    look = partial(_look, machine_named(given.machine), limits)
    found = [one for one in on_all_cores(look, paths, chunk=4) if one]
    for claim, limit in zip(claims, limits):  # noqa: B905  Python 3.9
        many = [one for one in found if _is_many(_vector(one), one["code"], limit)]
        many.sort(key=_vector, reverse=True)
        silent = [{**one, "owners": list(owners.get(one["path"], ()))} for one in many if not one["asks"]]
        evidence = {
            "files": len(found),
            "bytes": sum(one["code"] for one in found),
            "asking": sum(one["asks"] for one in many),
            "not_asking": silent[:_MOST_LISTED],
        }
        yield claim.subject, evidence


def _vector(found: Mapping[str, Any]) -> int:
    return max(int(found["avx512"]), int(found.get("sve", 0)))


def _is_many(count: int, code: int, limit: tuple[int, int]) -> bool:
    most, per_bytes = limit
    return count > most + code // per_bytes


def _look(machine: Machine, limits: Sequence[tuple[int, int]], path: str) -> Mapping[str, Any] | None:
    """None for what is no library or program of this machine; `libraries` names those that can't be read. `asks`: of a
    file with many such instructions; to look for it in all others would take most of the time."""
    try:
        with Path(path).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if elf.machine(data) != machine.number:
                return None
            parts = [(one.offset, one.offset + one.size) for one in elf.sections(data) if one.flags & _EXECUTABLE]
            code = sum(end - begin for begin, end in parts)
            if machine == AARCH64:
                sve = sum(
                    _sve(data[begin + 3 : end : 4]) - _aligned(_VECTOR_LENGTH, data, begin, end) for begin, end in parts
                )
                many = any(_is_many(sve, code, limit) for limit in limits)
                asks = many and (
                    _asks_others(path) or any(_aligned(_ID_REGISTER, data, begin, end) for begin, end in parts)
                )
                return {"path": path, "code": code, "avx512": 0, "sve": sve, "asks": asks}
            avx512 = sum(1 for begin, end in parts for _ in _AVX512.finditer(data, begin, end))
            many = any(_is_many(avx512, code, limit) for limit in limits)
            asks = many and (_asks_others(path) or any(_CPUID.search(data, begin, end) for begin, end in parts))
            return {"path": path, "code": code, "avx512": avx512, "asks": asks}
    except (OSError, ValueError, ElfError):
        return None


def _sve(last_bytes: bytes) -> int:
    return len(last_bytes) - len(last_bytes.translate(None, _SVE))


def _aligned(pattern: re.Pattern[bytes], data: mmap.mmap | bytes, begin: int, end: int) -> int:
    """How many whole words of these match: others lie across two instructions."""
    return sum((found.start() - begin) % 4 == 0 for found in pattern.finditer(data, begin, end))


def _asks_others(path: str) -> bool:
    return any(_ASKING.fullmatch(name) for name in dynsym.read(path).undefined)


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """instructions. expect: {most: such instructions that a file without a check may seem to hold, per_bytes: bytes of
    code that may look like one more, extension: `sve` on AArch64; absent: AVX-512}.

    evidence: {files, bytes, asking: files, not_asking: [{path, owners, code: bytes, asks, avx512 and perhaps sve: how
    many such instructions}]}.
    """
    extension = expect.get("extension", "avx512")
    name = {"avx512": "AVX-512", "sve": "SVE"}[extension]
    if not evidence["files"]:
        return failed("there is no native code to read")
    faults = [
        f"{one['path']} of {listed(one['owners']) or 'no distribution'} holds {one.get(extension)} {name} instructions "
        "and never asks whether the processor has them"
        for one in evidence["not_asking"]
    ]
    return conclude(
        faults, f"{evidence['files']} files of native code; the {evidence['asking']} that use AVX-512 ask first"
    )


CLAIMS = {"instructions": judge}
