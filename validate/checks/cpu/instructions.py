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
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict

from validate.binaries import dynsym, elf
from validate.binaries.elf import ElfError
from validate.binaries.loader import AARCH64, Machine, machine_named, objects
from validate.checks import Settings
from validate.checks.static.files import size
from validate.claims import Claim
from validate.environment import installed
from validate.harness.forked import map_on_all_cores
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

_NOISE_COUNT = 3
_NOISE_BYTES = 8_000_000
"""So many such instructions a file may seem to hold by chance, and one more for each so many bytes of code."""
_MOST_LISTED = 20
_NAMES = {"avx512": "AVX-512", "sve": "SVE"}
"""How people call the instructions that a claim's subject names."""


class _Code(TypedDict):
    path: str
    code: int
    avx512: int
    asks: bool


class NativeCode(_Code, total=False):
    """A file's bytes of code, how many such instructions it seems to hold, and whether it asks for the processor."""

    sve: int
    owners: list[str]


class InstructionsEvidence(TypedDict):
    """All files; of those with many such instructions, how many ask, and which do not."""

    files: int
    asking: int
    not_asking: list[NativeCode]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, InstructionsEvidence]]:
    """Yield the evidence of the claim, which is about the instructions of the image's processor."""
    given, _, everything = installed.of_user()
    owners = installed.names_of_owners(everything)
    programs = objects(installed.locations(everything), owners)
    paths = sorted({os.path.realpath(path) for path in programs}, key=size, reverse=True)
    look = partial(_look, machine_named(given.machine))
    files = [file for file in map_on_all_cores(look, paths, chunk=4) if file]

    many = [file for file in files if _is_many(_count(file), file["code"])]
    many.sort(key=_count, reverse=True)
    not_asking: list[NativeCode] = []
    for file in many:
        if not file["asks"]:
            not_asking.append({**file, "owners": list(owners.get(file["path"], ()))})
    evidence: InstructionsEvidence = {
        "files": len(files),
        "asking": len(many) - len(not_asking),
        "not_asking": not_asking[:_MOST_LISTED],
    }
    for claim in claims:
        yield claim.subject, evidence


def _count(file: NativeCode) -> int:
    """Return how many such instructions a file seems to hold."""
    return max(file["avx512"], file.get("sve", 0))


def _is_many(count: int, code: int) -> bool:
    """Return whether so many instructions can't be chance in so many bytes of code."""
    return count > _NOISE_COUNT + code // _NOISE_BYTES


def _look(machine: Machine, path: str) -> NativeCode | None:
    """Count the instructions of a file; None: it is no library or program of this machine.

    `libraries` names files that can't be read.
    """
    try:
        with (
            Path(path).open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            if elf.machine(data) != machine.number:
                return None
            executable = [section for section in elf.sections(data) if section.flags & _EXECUTABLE]
            parts = [(section.offset, section.offset + section.size) for section in executable]
            code = sum(end - begin for begin, end in parts)
            count_in = _count_sve if machine == AARCH64 else _count_avx512
            count = sum(count_in(data, begin, end) for begin, end in parts)

            # Only of a file with many: to look for it in all others would take most of the time.
            asks = False
            if _is_many(count, code):
                asks_in = _reads_id_register if machine == AARCH64 else _runs_cpuid
                asks = _asks_others(path) or any(asks_in(data, begin, end) for begin, end in parts)
    except (OSError, ValueError, ElfError):
        return None

    if machine == AARCH64:
        return {"path": path, "code": code, "avx512": 0, "sve": count, "asks": asks}
    return {"path": path, "code": code, "avx512": count, "asks": asks}


def _count_avx512(data: mmap.mmap, begin: int, end: int) -> int:
    """Count what looks like an AVX-512 instruction."""
    return sum(1 for _ in _AVX512.finditer(data, begin, end))


def _count_sve(data: mmap.mmap, begin: int, end: int) -> int:
    """Count SVE instructions, without those of libgcc's unwinder."""
    return _sve(data[begin + 3 : end : 4]) - _aligned(_VECTOR_LENGTH, data, begin, end)


def _runs_cpuid(data: mmap.mmap, begin: int, end: int) -> bool:
    """Return whether code asks an x86 processor what it can do."""
    return bool(_CPUID.search(data, begin, end))


def _reads_id_register(data: mmap.mmap, begin: int, end: int) -> bool:
    """Return whether code asks an Arm processor what it can do."""
    return _aligned(_ID_REGISTER, data, begin, end) > 0


def _sve(last_bytes: bytes) -> int:
    return len(last_bytes) - len(last_bytes.translate(None, _SVE))


def _aligned(pattern: re.Pattern[bytes], data: mmap.mmap | bytes, begin: int, end: int) -> int:
    """How many whole words of these match: others lie across two instructions."""
    return sum((match.start() - begin) % 4 == 0 for match in pattern.finditer(data, begin, end))


def _asks_others(path: str) -> bool:
    return any(_ASKING.fullmatch(name) for name in dynsym.read(path).undefined)


def judge(subject: str, _expect: object, evidence: InstructionsEvidence) -> Finding:
    """Judge that every file that uses such instructions asks whether the processor has them."""
    name = _NAMES[subject]
    if not evidence["files"]:
        return failed("there is no native code to read")
    faults = [
        f"{file['path']} of {listed(file['owners']) or 'no distribution'} holds {_count(file)} {name} instructions "
        "and never asks whether the processor has them"
        for file in evidence["not_asking"]
    ]
    return conclude(
        faults,
        f"{evidence['files']} files of native code; the {evidence['asking']} that use AVX-512 ask first",
    )


CLAIMS = {"instructions": judge}
