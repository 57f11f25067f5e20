"""instructions on AArch64: SVE instructions are told from NEON's, and from the unwinder's question for the vector
length."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validate.checks.cpu import instructions

PTRUE, CNTD, NEON_FADD = (struct.pack("<I", word) for word in (0x2518E3E0, 0x04E0E3E0, 0x4E20D400))
READS_ID_AA64PFR0, READS_COUNTER = (struct.pack("<I", word) for word in (0xD5380400, 0xD53BE040))


def sve(code: bytes) -> int:
    return instructions.count_sve(code, 0, len(code))


def test_sve_is_told_from_neon_and_from_the_unwinders_question() -> None:
    assert sve(NEON_FADD * 100) == 0
    assert sve(NEON_FADD + PTRUE + NEON_FADD) == 1
    assert sve((NEON_FADD + CNTD) * 6) == 0


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_an_instruction_is_sves_by_its_bits_25_to_28(words: list[int]) -> None:
    expected = sum((word >> 25) & 0xF == 0b0010 and word != 0x04E0E3E0 for word in words)
    assert sve(b"".join(struct.pack("<I", word) for word in words)) == expected


@pytest.mark.parametrize(
    ("word", "asks"), [(READS_ID_AA64PFR0, 1), (READS_COUNTER, 0), (NEON_FADD, 0)]
)
def test_a_file_asks_by_reading_an_id_register(word: bytes, asks: int) -> None:
    code = NEON_FADD + word
    assert instructions.count_words(instructions._ID_REGISTER, code, 0, len(code)) == asks


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        ("b8 01 00 00 00 0f a2", True),
        (
            "53 41 50 51 52 56 89 f8 31 c9 0f a2 41 58",
            True,
        ),  # x264 and FFmpeg: the leaf is an argument
        ("49 89 f8 89 f0 89 d1 49 89 d9 0f a2 41 89", True),  # dav1d
        ("89 e8 89 e9 0f a2 85 c0", True),  # libwebp
        ("0f f5 25 06 10 a2 00 66 0f f5 2d fe 0f a2 00 66", False),  # bytes of x265's addresses
    ],
)
def test_a_leaf_that_comes_in_a_register_is_a_question_too(code: str, asks: bool) -> None:
    assert bool(instructions._CPUID.search(bytes.fromhex(code))) == asks


def test_a_library_asks_by_another_that_asks() -> None:
    assert instructions._CHECKING_SYMBOL.fullmatch(
        b"av_get_cpu_flags"
    ) and not instructions._CHECKING_SYMBOL.fullmatch(b"memcpy")


def test_a_verdict_names_the_instructions_of_its_claim() -> None:
    evidence: instructions.InstructionsEvidence = {"files": 3, "asking": 1, "not_asking": []}
    assert "that use SVE ask first" in instructions.judge("sve", {}, evidence).reason
    assert "that use AVX-512 ask first" in instructions.judge("avx512", {}, evidence).reason
