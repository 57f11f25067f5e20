"""The header of a cubin tells its architecture; anything else is no cubin."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validate.binaries.cubin import EM_CUDA, cubin_facts


def cubin_with_header(abi: int, flags: int) -> bytes:
    """An ELF file of CUDA with this ABI version and these e_flags, and without sections."""
    ident = b"\x7fELF\x02\x01\x01" + bytes([0x33, abi]) + bytes(7)
    return ident + struct.pack("<HHIQQQI", 2, EM_CUDA, 1, 0, 0, 0, flags) + bytes(12)


@pytest.mark.parametrize(
    ("abi", "flags", "arch"),
    [
        (7, 0x460546, 70),
        (7, 0x5A0D5A, 90),
        (8, 0xA005A04, 90),
        (8, 0xA006402, 100),
        (8, 0x900780A, 120),
    ],
)
def test_the_flags_of_headers_that_ptxas_made_tell_the_architecture(
    abi: int, flags: int, arch: int
) -> None:
    """Flags of what Triton 3.1, 3.3 and 3.9 compiled."""
    assert cubin_facts(cubin_with_header(abi, flags))["arch"] == arch


@given(st.binary(max_size=200))
def test_anything_else_is_no_cubin(content: bytes) -> None:
    assert cubin_facts(content)["machine"] != EM_CUDA or content.startswith(b"\x7fELF")
