"""Which code runs on which GPU, by NVIDIA's rules: what is written here stands nowhere else."""

import pytest

from tests.support.cases import cases
from validate import compute_capability
from validate.compute_capability import Capability

GPUS: tuple[Capability, ...] = (
    (7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0),
    (10, 0), (10, 3), (11, 0), (12, 0), (12, 1), (13, 0),
)  # fmt: skip


@pytest.mark.parametrize(("target", "gpus"), cases(__file__, "targets"))
def test_a_target_runs_on_these_gpus_and_on_no_other(target: str, gpus: list[list[int]]) -> None:
    assert [[*gpu] for gpu in GPUS if compute_capability.target_runs_on(target, gpu)] == gpus


@pytest.mark.parametrize(
    ("machine_code", "ptx", "gpu", "fit"),
    [
        pytest.param([(8, 0)], [(8, 0)], (8, 6), "cubin", id="machine code comes before PTX"),
        pytest.param([(8, 0)], [(8, 0)], (9, 0), "ptx", id="PTX where machine code does not run"),
        pytest.param([(8, 0)], [], (9, 0), "no", id="machine code of an older generation alone"),
        pytest.param([], [(9, 0)], (8, 9), "no", id="PTX of a newer GPU"),
    ],
)
def test_code_fits_a_gpu_by_its_machine_code_else_by_its_ptx(
    machine_code: list[Capability], ptx: list[Capability], gpu: Capability, fit: str
) -> None:
    assert compute_capability.fit(machine_code, ptx, gpu) == fit
