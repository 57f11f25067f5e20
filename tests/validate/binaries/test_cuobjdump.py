"""What the comparison with NVIDIA's cuobjdump calls equal."""

from collections import Counter

import pytest

from tests.support import cuobjdump

LISTED = """ELF file    1: libx.1.sm_90.cubin
ELF file    2: libx.2.sm_120.cubin
ELF file    3: libx.3.sm_90a.cubin
PTX file    1: libx.1.sm_90.ptx
"""


def test_machine_code_and_ptx_are_counted_by_architecture() -> None:
    assert cuobjdump.listed(LISTED) == {"sm_90": 1, "sm_120": 1, "sm_90a": 1, "compute_90": 1}


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"sm_90": 2, "sm_120": 1}, "equal"),
        ({"sm_90": 2, "sm_120f": 1}, "equal but for f"),
        ({"sm_90": 1, "sm_120": 1}, "ours {}, cuobjdump's {'sm_90': 1}"),
        ({"sm_90": 2, "sm_120": 1, "compute_90": 1}, "ours {'compute_90': 1}, cuobjdump's {}"),
    ],
)
def test_only_the_letter_that_it_drops_is_no_difference(own: dict[str, int], said: str) -> None:
    assert cuobjdump.compared(Counter(own), Counter({"sm_90": 2, "sm_120": 1})) == said
