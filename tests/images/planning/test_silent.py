"""Which versions are known to compute wrong numbers, as runs on GPUs showed."""

import pytest

from images.config.facts import within
from images.planning import silent

ON_TORCH_2_6 = {"cudnn-attention-mask", "large-nearest"}
"""Faults that the first run of torch 2.6 on an H200 showed (2026-11-30)."""


@pytest.mark.parametrize(
    ("torch", "cudnn", "has_them"),
    [
        pytest.param("2.6.0", "9.1.0.70", True, id="torch 2.6"),
        # Right on an H200 and on H100s.
        pytest.param("2.8.0", "9.10.2.21", False, id="torch 2.8 with its own cuDNN"),
        pytest.param("2.11.0", "9.26.0.51", False, id="torch 2.11 with cuDNN 9.26"),
    ],
)
def test_torch_2_6_has_the_faults_that_its_run_showed(
    torch: str, cudnn: str, has_them: bool
) -> None:
    found = silent.find_faults({"torch": torch, "cudnn": cudnn})

    assert (found.keys() & ON_TORCH_2_6) == (ON_TORCH_2_6 if has_them else set())


def test_newer_cudnn_has_the_fault_again_until_9_26() -> None:
    assert "cudnn-attention-mask" in silent.find_faults({"torch": "2.8.0", "cudnn": "9.15.1.9"})


def test_what_ends_with_an_error_in_torch_2_6_is_not_asked_of_it() -> None:
    item_loop = silent.faults()["compile-item-loop"]

    assert not within("2.6.0", item_loop.torch)
    assert within("2.5.1", item_loop.torch)
