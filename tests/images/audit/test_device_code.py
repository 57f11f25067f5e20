"""Which GPUs the device code of packages is for."""

import pytest

from images.audit import device_code
from tests.support.audit_samples import code

MB = 1 << 20


def test_machine_code_comes_before_ptx_and_a_gpu_that_neither_serves_has_no_code() -> None:
    torch = code("torch/lib/libtorch_cuda.so", "torch", sm_80=MB, sm_90=MB, compute_90=MB)

    kinds = device_code.kinds_by_package([torch], "12.6", ["75", "86", "90", "120"])

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

    (kinds,) = device_code.kinds_by_package(variants, torch_cuda, ["80", "120"]).values()

    assert {arch for arch, kind in kinds.items() if kind != "no"} == served


TORCH = [
    code("torch/lib/libtorch_cuda.so", "torch", sm_70=900 * MB, sm_120=900 * MB),
    code("torch/lib/libtorch_cuda_linalg.so", "torch", sm_50=90 * MB, sm_70=90 * MB),
]
VLLM = [
    code("vllm/_C.abi3.so", "vllm", sm_80=MB, sm_120=MB),
    code("vllm/_flashmla_C.abi3.so", "vllm", sm_90a=9 * MB),
]
UNKNOWN = [
    code("some/a.so", "some", sm_80=MB),
    code("some/b.so", "some", sm_90=9 * MB),
]


@pytest.mark.parametrize(
    ("libraries", "arch", "kind"),
    [
        pytest.param(TORCH, "60", "no", id="torch: linear algebra alone has code for it"),
        pytest.param(TORCH, "120", "machine code", id="torch: all but linear algebra"),
        pytest.param(VLLM, "120", "machine code", id="vllm: a library for sm_90 only"),
        pytest.param(VLLM, "90", "no", id="vllm: only that library"),
        pytest.param(UNKNOWN, "80", "machine code", id="not listed: the best counts"),
        pytest.param(UNKNOWN, "75", "no", id="not listed: none has code"),
    ],
)
def test_a_package_is_served_by_the_worst_of_the_libraries_that_it_needs(
    libraries: list[device_code.LibraryCode], arch: str, kind: str
) -> None:
    (kinds,) = device_code.kinds_by_package(libraries, "12.8", [arch]).values()

    assert kinds == {arch: kind}


@pytest.mark.parametrize(
    ("libraries", "arch", "lacking"),
    [
        pytest.param(VLLM, "120", ["_flashmla_C.abi3.so"], id="one is for another GPU"),
        pytest.param(TORCH, "70", [], id="all have code"),
        pytest.param(TORCH, "60", [], id="the package itself has none"),
        pytest.param(UNKNOWN, "80", ["b.so"], id="not listed"),
    ],
)
def test_libraries_that_a_package_may_work_without_are_named(
    libraries: list[device_code.LibraryCode], arch: str, lacking: list[str]
) -> None:
    paths = device_code.lacking_libraries(libraries, "12.8", [arch])

    assert [path.rpartition("/")[2] for path in paths] == lacking


def test_a_library_with_a_few_bytes_of_code_does_not_count() -> None:
    cufft = code("nvidia/cufft/lib/libcufft.so.11", "nvidia-cufft", sm_52=320)

    assert device_code.kinds_by_package([cufft], "12.6", ["90"]) == {}
