"""Which GPUs the device code of packages is for."""

import pytest

from images.audit import device_code
from tests.support.audit_samples import code

MB = 1 << 20


def test_machine_code_comes_before_ptx_and_a_gpu_that_neither_serves_has_no_code() -> None:
    torch = code("torch/lib/libtorch_cuda.so", "torch", sm_80=MB, sm_90=MB, compute_90=MB)

    kinds = device_code.support([torch], "12.6", ["75", "86", "90", "120"])

    assert kinds == {
        "torch": {"75": "no", "86": "machine code", "90": "machine code", "120": "PTX"}
    }


@pytest.mark.parametrize(
    ("torch_cuda", "served"),
    [
        pytest.param("12.6", {"80"}, id="the same CUDA"),
        pytest.param("12.7", {"80"}, id="the nearest lower"),
        pytest.param("12.8", {"120"}, id="the same again"),
        pytest.param("12.0", {"80"}, id="the nearest higher"),
        pytest.param("13.0", set(), id="another major"),
        pytest.param("", {"80", "120"}, id="unknown"),
    ],
)
def test_of_variants_for_each_cuda_only_the_one_that_is_loaded_counts(
    torch_cuda: str, served: set[str]
) -> None:
    variants = [
        code("bitsandbytes/libbitsandbytes_cuda126.so", "bitsandbytes", sm_80=MB),
        code("bitsandbytes/libbitsandbytes_cuda128.so", "bitsandbytes", sm_120=MB),
    ]

    (kinds,) = device_code.support(variants, torch_cuda, ["80", "120"]).values()

    assert {arch for arch, kind in kinds.items() if kind != "no"} == served


def test_a_library_with_a_few_bytes_of_code_does_not_count() -> None:
    cufft = code("nvidia/cufft/lib/libcufft.so.11", "nvidia-cufft", sm_52=320)

    assert device_code.support([cufft], "12.6", ["90"]) == {}
