"""What device code means: which GPUs, which drivers."""

import pytest

from images.audit import checks
from tests.support.audit_samples import code, distribution, environment
from tests.support.sources import SOURCES

MB = 1 << 20


def test_machine_code_comes_before_ptx_and_what_neither_serves_is_told() -> None:
    (torch,) = checks.runs([code("torch/lib/libtorch_cuda.so", "torch", sm_80=MB, sm_90=MB, compute_90=MB)], "12.6")
    assert (torch.on["75"], torch.on["86"], torch.on["90"], torch.on["120"]) == (
        "no",
        "machine code",
        "machine code",
        "PTX",
    )


@pytest.mark.parametrize(
    ("cuda", "served"),
    [("12.6", {"80"}), ("12.7", {"80"}), ("12.8", {"120"}), ("12.0", {"80"}), ("13.0", set()), ("", {"80", "120"})],
)
def test_of_alternatives_for_each_cuda_the_one_that_is_loaded_counts(cuda: str, served: set[str]) -> None:
    own = [
        code("bitsandbytes/libbitsandbytes_cuda126.so", "bitsandbytes", sm_80=MB),
        code("bitsandbytes/libbitsandbytes_cuda128.so", "bitsandbytes", sm_120=MB),
    ]
    (row,) = checks.runs(own, cuda)
    assert {arch for arch in ("80", "120") if row.on[arch] != "no"} == served


def test_small_remains_are_not_shown() -> None:
    assert checks.runs([code("nvidia/cufft/lib/libcufft.so.11", "nvidia-cufft", sm_52=320)], "12.6") == ()


def test_drivers_are_those_of_torchs_cuda_and_of_the_runtimes_beside_it() -> None:
    found = checks.drivers([environment(distribution("nvidia-cuda-runtime", "13.0.96"))], SOURCES.facts)
    assert found == (
        "CUDA 12.6: driver 525.60.13 or newer (560.28.03 for PTX)",
        "CUDA 13.0: driver 580 or newer (580.65.06 for PTX)",
    )
