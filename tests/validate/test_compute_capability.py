"""Which code runs on which GPU, by NVIDIA's rules: what is written here stands nowhere else."""

import pytest

from tests.support.cases import cases
from validate import compute_capability
from validate.compute_capability import Capability

GPUS: tuple[Capability, ...] = (
    (7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1), (13, 0),
)  # fmt: skip


@pytest.mark.parametrize(("target", "gpus"), cases(__file__, "targets"))
def test_a_target_runs_on_these_gpus_and_on_no_other(target: str, gpus: list[list[int]]) -> None:
    assert [[*gpu] for gpu in GPUS if compute_capability.target_runs_on(target, gpu)] == gpus


def test_machine_code_comes_before_ptx() -> None:
    assert compute_capability.fit([(8, 0)], [(8, 0)], (8, 6)) == "cubin"
    assert compute_capability.fit([(8, 0)], [(8, 0)], (9, 0)) == "ptx"
    assert compute_capability.fit([(8, 0)], [], (9, 0)) == "no"
    assert compute_capability.fit([], [(9, 0)], (8, 9)) == "no"
