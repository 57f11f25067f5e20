"""How many examples run at the same time."""

import pytest

from validate.examples.evidence import count_examples_at_once


@pytest.mark.parametrize(
    ("examples", "cores", "gigabytes", "count"),
    [
        pytest.param(3, 16, 12, 3, id="all of them"),
        pytest.param(9, 64, 12, 4, id="as memory allows"),
        pytest.param(3, 2, 64, 1, id="as cores allow"),
        pytest.param(3, 16, 2, 1, id="one where memory is short"),
        pytest.param(0, 16, 64, 1, id="one where there is none"),
    ],
)
def test_examples_run_side_by_side_as_cores_and_memory_allow(
    examples: int, cores: int, gigabytes: int, count: int
) -> None:
    assert count_examples_at_once(examples, cores, gigabytes << 30) == count
