"""What device code means: which GPUs."""

import pytest

from images.audit import device_code
from tests.support.audit_samples import code

MB = 1 << 20


def test_machine_code_comes_before_ptx_and_what_neither_serves_is_told() -> None:
    torch = code("torch/lib/libtorch_cuda.so", "torch", sm_80=MB, sm_90=MB, compute_90=MB)
    assert device_code.support([torch], "12.6", ["75", "86", "90", "120"]) == {
        "torch": {"75": "no", "86": "machine code", "90": "machine code", "120": "PTX"}
    }


@pytest.mark.parametrize(
    ("cuda", "served"),
    [
        ("12.6", {"80"}),
        ("12.7", {"80"}),
        ("12.8", {"120"}),
        ("12.0", {"80"}),
        ("13.0", set()),
        ("", {"80", "120"}),
    ],
)
def test_of_alternatives_for_each_cuda_the_one_that_is_loaded_counts(
    cuda: str, served: set[str]
) -> None:
    own = [
        code("bitsandbytes/libbitsandbytes_cuda126.so", "bitsandbytes", sm_80=MB),
        code("bitsandbytes/libbitsandbytes_cuda128.so", "bitsandbytes", sm_120=MB),
    ]
    (kinds,) = device_code.support(own, cuda, ["80", "120"]).values()
    assert {arch for arch, kind in kinds.items() if kind != "no"} == served


def test_small_remains_do_not_count() -> None:
    assert (
        device_code.support(
            [code("nvidia/cufft/lib/libcufft.so.11", "nvidia-cufft", sm_52=320)], "12.6", ["90"]
        )
        == {}
    )
