"""P2 is of one GPU, whatever the machine has."""

import pytest

from validate.checks._examples import one_gpu


@pytest.mark.parametrize(
    ("environ", "seen"),
    [({}, "0"), ({"CUDA_VISIBLE_DEVICES": "3,1"}, "3"), ({"CUDA_VISIBLE_DEVICES": ""}, "")],
)
def test_the_examples_see_one_gpu(environ: dict[str, str], seen: str) -> None:
    assert one_gpu(environ) == seen
