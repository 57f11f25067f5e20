"""instructions: which are counted, and when a file asks for them.

On AArch64, SVE instructions are told from NEON's, and from those of libgcc's unwinder.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validate.checks.cpu import instructions

CNTD_WORD = 0x04E0E3E0
"""`cntd x0`: the unwinder's question for the length of a vector."""


def instruction(word: int) -> bytes:
    """An instruction of AArch64 as it lies in a file."""
    return struct.pack("<I", word)


CNTD = instruction(CNTD_WORD)
PTRUE, NEON_FADD = instruction(0x2518E3E0), instruction(0x4E20D400)
READS_ID_AA64PFR0, READS_COUNTER = instruction(0xD5380400), instruction(0xD53BE040)


def count_sve(code: bytes) -> int:
    return instructions.count_sve(code, 0, len(code))


@pytest.mark.parametrize(
    ("code", "count"),
    [
        pytest.param(NEON_FADD * 100, 0, id="NEON"),
        pytest.param(NEON_FADD + PTRUE + NEON_FADD, 1, id="one of SVE"),
        pytest.param((NEON_FADD + CNTD) * 6, 0, id="the unwinder's"),
    ],
)
def test_sve_is_told_from_neon_and_from_the_unwinder(code: bytes, count: int) -> None:
    assert count_sve(code) == count


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_an_instruction_is_sves_by_its_bits_25_to_28(words: list[int]) -> None:
    expected = sum((word >> 25) & 0xF == 0b0010 and word != CNTD_WORD for word in words)

    assert count_sve(b"".join(map(instruction, words))) == expected


@pytest.mark.parametrize(
    ("last", "count"),
    [
        pytest.param(READS_ID_AA64PFR0, 1, id="reads an ID register"),
        pytest.param(READS_COUNTER, 0, id="reads another register"),
        pytest.param(NEON_FADD, 0, id="reads none"),
    ],
)
def test_a_file_asks_by_reading_an_id_register(last: bytes, count: int) -> None:
    code = NEON_FADD + last

    assert instructions.count_words(instructions._ID_REGISTER, code, 0, len(code)) == count


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        pytest.param("b8 01 00 00 00 0f a2", True, id="the leaf is a constant"),
        # In x264 and FFmpeg, the leaf is an argument of the function.
        pytest.param("53 41 50 51 52 56 89 f8 31 c9 0f a2 41 58", True, id="x264"),
        pytest.param("49 89 f8 89 f0 89 d1 49 89 d9 0f a2 41 89", True, id="dav1d"),
        pytest.param("89 e8 89 e9 0f a2 85 c0", True, id="libwebp"),
        # The bytes of CPUID are those of an address here.
        pytest.param("0f f5 25 06 10 a2 00 66 0f f5 2d fe 0f a2 00 66", False, id="x265"),
    ],
)
def test_cpuid_counts_with_its_leaf_set_just_before(code: str, asks: bool) -> None:
    assert bool(instructions._CPUID.search(bytes.fromhex(code))) == asks


@pytest.mark.parametrize(("symbol", "asks"), [(b"av_get_cpu_flags", True), (b"memcpy", False)])
def test_a_library_asks_by_another_that_asks(symbol: bytes, asks: bool) -> None:
    assert bool(instructions._CHECKING_SYMBOL.fullmatch(symbol)) == asks


@pytest.mark.parametrize(("subject", "name"), [("sve", "SVE"), ("avx512", "AVX-512")])
def test_a_verdict_names_the_instructions_of_its_claim(subject: str, name: str) -> None:
    evidence: instructions.InstructionsEvidence = {"files": 3, "asking": 1, "not_asking": []}

    finding = instructions.judge(subject, {}, evidence)

    assert f"that use {name} ask first" in finding.reason
