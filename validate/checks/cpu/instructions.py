"""instructions: check that no library uses AVX-512 or SVE without asking the processor first.

Such a library dies of SIGILL on a processor that lacks these instructions. The suite has no
disassembler. It reads two things from a file's machine code: the number of AVX-512 instructions
(the EVEX prefix, which has no other use in 64-bit code, before common vector opcodes), and whether
the file checks the processor (CPUID with a leaf set just before, or a call to a library that
checks). A compiler with `-mavx512f` or `-march=native` emits the instructions without the check. A
file with a check is assumed to obey it: the probe finds code that was built for the builder's
machine, not a wrong dispatcher.

On AArch64, an instruction is a word of four bytes, and bits 25 to 28 of an SVE instruction are 0010
(Arm Architecture Reference Manual, C4.1 "A64 instruction set encoding"). A file checks the
processor by asking the kernel (getauxval), or by reading an ID register.

Four healthy images have at most 1 such instruction in 50 MB; gcc's `-mavx512f` emits 2 for one
small loop.
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
from validate.binaries.loader import AARCH64, Machine, find_binaries, machine_named
from validate.checks import Settings
from validate.checks.static.files import file_size
from validate.claims import Claim
from validate.environment import installed
from validate.harness.forked import map_on_all_cores
from validate.judging import Finding, conclude, failed, listed
from validate.next_steps import REPORT, pin

SETTINGS = Settings(reads_files_only=True)

_EXECUTABLE = 4
"""The flag of sections that hold machine code: SHF_EXECINSTR of elf(5)."""
_AVX512 = re.compile(
    rb"\x62"
    rb"[\x01-\x03\x11-\x13\x21-\x23\x31-\x33\x41-\x43\x51-\x53\x61-\x63\x71-\x73"
    rb"\x81-\x83\x91-\x93\xa1-\xa3\xb1-\xb3\xc1-\xc3\xd1-\xd3\xe1-\xe3\xf1-\xf3]"
    rb"[\x04-\x07\x0c-\x0f\x14-\x17\x1c-\x1f\x24-\x27\x2c-\x2f\x34-\x37\x3c-\x3f"
    rb"\x44-\x47\x4c-\x4f\x54-\x57\x5c-\x5f\x64-\x67\x6c-\x6f\x74-\x77\x7c-\x7f"
    rb"\x84-\x87\x8c-\x8f\x94-\x97\x9c-\x9f\xa4-\xa7\xac-\xaf\xb4-\xb7\xbc-\xbf"
    rb"\xc4-\xc7\xcc-\xcf\xd4-\xd7\xdc-\xdf\xe4-\xe7\xec-\xef\xf4-\xf7\xfc-\xff]"
    rb"[\x08\x28\x40\x48\x58]"
    rb"[\x10\x11\x18\x19\x28\x29\x51\x54\x57-\x59\x5c-\x5f\x6f\x7f\x98\xa8\xb8\xbc\xef\xfe]"
)
"""The start of an AVX-512 instruction (Intel SDM volume 2, 2.7 "EVEX"): the prefix, P0 with a known
opcode map and its zero bits, P1 with its one bit, P2 without a mask, then the opcode of a move,
sum, product or fused product."""

_CPUID = re.compile(
    rb"(?:(?:\xb8[\x00-\x1f]\x00\x00[\x00\x80]|[\x31\x33]\xc0)[\x00-\xff]{0,24}?"
    rb"|\x89[\xc8\xd0\xd8\xe8\xf0\xf8]"
    rb"(?:[\x31\x33]\xc9|\x89[\xc1\xd1\xd9\xe9\xf1\xf9])[\x00-\xff]{0,3}?)\x0f\xa2",
    re.DOTALL,
)
"""CPUID with the leaf set just before; or with leaf and subleaf from registers, in a function that
has them as parameters (x264, dav1d)."""
_CHECKING_SYMBOL = re.compile(
    rb"__cpu_model|__cpu_indicator_init|cpuinfo_.*|(?:.*_)?get_cpu_(?:flags|features)\w*"
    rb"|__cpu_features2?|getauxval|.*is_avx512.*"
)
"""Functions and data of other libraries that tell which instructions the processor has."""

_SVE = bytes(byte for byte in range(256) if byte & 0x1E == 0x04)
"""The values that the last byte of an SVE instruction can have. This byte holds bits 24 to 31."""
_VECTOR_LENGTH = re.compile(rb"\xe0\xe3\xe0\x04")
"""`cntd x0`, an SVE instruction that says nothing about a file: libgcc's unwinder, which is linked
into many libraries, runs it only where a frame has saved SVE registers (gcc,
libgcc/config/aarch64/value-unwind.h). No loop works with it alone."""
_ID_REGISTER = re.compile(rb"[\x00-\x1f\x80-\x9f\xa0-\xbf\xe0-\xff][\x00-\xff]\x38\xd5")
"""MRS from ID_AA64PFR0_EL1 and similar registers: op0 3, op1 0, CRn 0. Linux lets programs read
them (Documentation/arch/arm64/cpu-feature-registers.rst)."""

_NOISE_COUNT = 3
_NOISE_BYTES = 8_000_000
"""By chance, a file may seem to hold _NOISE_COUNT such instructions, and one more for each
_NOISE_BYTES of code."""
_MOST_LISTED = 20
"""How many files evidence lists. The worst come first, and a verdict names but a few."""
_NAMES = {"avx512": "AVX-512", "sve": "SVE"}
"""A claim's subject -> the usual name of these instructions."""


class _Code(TypedDict):
    path: str
    code: int  # bytes of machine code
    avx512: int  # number of what looks like an AVX-512 instruction
    asks: bool  # the file checks the processor; false too if it has too few instructions to matter


class NativeCode(_Code, total=False):
    """The vector instructions of one library or program."""

    sve: int  # number of SVE instructions; absent on x86
    owners: list[str]  # the distributions that have the file


class InstructionsEvidence(TypedDict):
    """What `measure` yields."""

    files: int  # number of all libraries and programs
    asking: int  # of those with many such instructions, the number that check the processor
    not_asking: list[NativeCode]  # and those that do not, the worst first


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, InstructionsEvidence]]:
    """Find compiled files with many AVX-512 (on Arm: SVE) instructions, which old processors lack.

    A file `asks` if it checks whether the processor has them before it uses them. Files that do not
    ask are listed. The evidence is the same for every claim.
    """
    environment, _, distributions = installed.read_user_python()
    # Path of an installed file -> the distributions that have it.
    owners = installed.names_of_owners(distributions)
    programs = find_binaries(installed.locations(distributions), owners)
    # Begin with the largest files. Otherwise one core may still read a large one when all others
    # have finished.
    paths = sorted({os.path.realpath(path) for path in programs}, key=file_size, reverse=True)
    examine = partial(examine_file, machine_named(environment.machine))
    files = [file for file in map_on_all_cores(examine, paths, chunk=4) if file]

    # Keep files with many such instructions, the most first. A few are found in any large file,
    # because some bytes look like them by chance: so the size of its machine code (`code`) counts.
    with_many = [file for file in files if is_many(count_instructions(file), file["code"])]
    with_many.sort(key=count_instructions, reverse=True)
    not_asking: list[NativeCode] = []
    for file in with_many:
        if not file["asks"]:
            not_asking.append({**file, "owners": list(owners.get(file["path"], ()))})
    evidence: InstructionsEvidence = {
        "files": len(files),
        "asking": len(with_many) - len(not_asking),
        "not_asking": not_asking[:_MOST_LISTED],
    }
    for claim in claims:
        yield claim.subject, evidence


def count_instructions(file: NativeCode) -> int:
    """Return how many AVX-512 or SVE instructions a file seems to hold. It never has both."""
    return max(file["avx512"], file.get("sve", 0))


def is_many(count: int, code_bytes: int) -> bool:
    """Return whether code of this size can't seem to hold so many instructions by chance."""
    return count > _NOISE_COUNT + code_bytes // _NOISE_BYTES


def examine_file(machine: Machine, path: str) -> NativeCode | None:
    """Count the vector instructions of a file, and see whether it checks the processor.

    `machine` is the image's architecture. Returns None if the file is no library or program for it,
    or can't be read: the check `libraries` names files that can't be read.
    """
    try:
        with (
            Path(path).open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            if elf.machine(data) != machine.number:
                return None
            return count_in_data(machine, path, data)
    except (OSError, ValueError, ElfError):
        return None


def count_in_data(machine: Machine, path: str, data: mmap.mmap) -> NativeCode:
    """Count the vector instructions in a file: AVX-512, or SVE on Arm. `data` is its content.

    The result also says whether the file `asks` which instructions the processor has: by the
    instruction CPUID (on Arm: by reading an ID register), or by a function that it imports.
    """
    is_arm = machine == AARCH64
    count_instructions_in = count_sve if is_arm else count_avx512
    asks_processor_in = reads_id_register if is_arm else runs_cpuid

    code_bytes = 0
    count = 0
    code_ranges = []
    for section in elf.sections(data):
        if section.flags & _EXECUTABLE:
            begin, end = section.offset, section.offset + section.size
            code_ranges.append((begin, end))
            code_bytes += section.size
            count += count_instructions_in(data, begin, end)

    # To look for this in all files would take most of the time.
    asks = False
    if is_many(count, code_bytes):
        asks = imports_check(path)
        if not asks:
            asks = any(asks_processor_in(data, begin, end) for begin, end in code_ranges)

    # Evidence of x86 has no key `sve`.
    if is_arm:
        return {"path": path, "code": code_bytes, "avx512": 0, "sve": count, "asks": asks}
    return {"path": path, "code": code_bytes, "avx512": count, "asks": asks}


def count_avx512(data: mmap.mmap, begin: int, end: int) -> int:
    """Count what looks like an AVX-512 instruction in data[begin:end]."""
    return sum(1 for _ in _AVX512.finditer(data, begin, end))


def count_sve(data: mmap.mmap | bytes, begin: int, end: int) -> int:
    """Count the SVE instructions in data[begin:end], without those of libgcc's unwinder.

    SVE instructions are Arm's for vectors; not every processor has them.
    """
    # An instruction has four bytes. The last one tells whether it is one of SVE.
    last_bytes = data[begin + 3 : end : 4]
    others = last_bytes.translate(None, _SVE)
    return len(last_bytes) - len(others) - count_words(_VECTOR_LENGTH, data, begin, end)


def runs_cpuid(data: mmap.mmap, begin: int, end: int) -> bool:
    """Return whether x86 code in data[begin:end] asks the processor which instructions it has."""
    return bool(_CPUID.search(data, begin, end))


def reads_id_register(data: mmap.mmap, begin: int, end: int) -> bool:
    """Return whether Arm code in data[begin:end] asks the processor which instructions it has."""
    return count_words(_ID_REGISTER, data, begin, end) > 0


def count_words(pattern: re.Pattern[bytes], data: mmap.mmap | bytes, begin: int, end: int) -> int:
    """Count the matches of a pattern in data[begin:end] that are whole instructions of Arm.

    Each instruction has four bytes. Matches that lie across two instructions mean nothing.
    """
    count = 0
    for match in pattern.finditer(data, begin, end):
        if (match.start() - begin) % 4 == 0:
            count += 1
    return count


def imports_check(path: str) -> bool:
    """Return whether a file imports a symbol by which other libraries check the processor."""
    for name in dynsym.read(path).undefined:
        if _CHECKING_SYMBOL.fullmatch(name):
            return True
    return False


def judge(subject: str, _expect: object, evidence: InstructionsEvidence) -> Finding:
    """Pass if every compiled file with AVX-512 (or SVE) code asks whether the processor has that.

    A file that does not ask ends with SIGILL on an older processor. `subject` is a key of _NAMES,
    which has the names of the instructions.
    """
    instructions = _NAMES[subject]
    if not evidence["files"]:
        return failed(
            "the image has no compiled library whose instructions could be read",
            "if a step of your Dockerfile removes torch or its libraries (`docker run --rm IMAGE "
            "python -m pip list` shows whether the image has torch), take that step out and build "
            f"the image again; if none does, {REPORT}",
        )

    faults = []
    for file in evidence["not_asking"]:
        owners = listed(file["owners"]) or "no distribution"
        faults.append(
            f"{file['path']} of {owners} holds {count_instructions(file)} {instructions} "
            "instructions and never asks whether the processor has them"
        )
    return conclude(
        faults,
        f"{evidence['files']} files of native code; "
        f"the {evidence['asking']} that use {instructions} ask first",
    )


CLAIMS = {"instructions": judge}
NEXT_STEPS = {
    "instructions": "compile the package again without `-march=native` and `-mavx512f` (for ARM "
    "without `+sve`) and build the image again, or "
    f"{pin('a release that the index has as a wheel')}"
}
