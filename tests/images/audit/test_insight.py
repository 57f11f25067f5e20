"""What device code means: which GPUs, which drivers, how many bytes for one of them."""

from __future__ import annotations

import pytest

from images.audit import insight
from images.audit.insight import nearest
from images.planning import plan
from tests.support.audit_samples import code, distribution, environment
from tests.support.sources import SOURCES

IMAGES = [planned.image for planned in plan.plan(SOURCES) if planned.image]
MB = 1 << 20


def test_machine_code_comes_before_ptx_and_what_neither_serves_is_told() -> None:
    (torch,) = insight.runs([code("torch/lib/libtorch_cuda.so", "torch", sm_80=MB, sm_90=MB, compute_90=MB)], "12.6")
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
    (row,) = insight.runs(own, cuda)
    assert {arch for arch in ("80", "120") if row.on[arch] != "no"} == served


def test_small_remains_are_not_shown() -> None:
    assert insight.runs([code("nvidia/cufft/lib/libcufft.so.11", "nvidia-cufft", sm_52=320)], "12.6") == ()


def test_an_image_for_one_architecture_keeps_what_that_needs_and_whole_libraries_that_have_none_of_it() -> None:
    own = [
        code("torch/lib/libtorch_cuda.so", "torch", sm_80=100, sm_90=50),
        code("nvidia/nccl/lib/libnccl.so.2", "nvidia-nccl", sm_80=10, sm_90=20),
        code("x/y.so", "x", sm_75=7),
    ]
    (weight,) = insight.weights(own, ["90"])
    assert (weight.arch, weight.removable, weight.removable_nvidia) == ("sm_90", 110, 10)
    assert insight.bytes_by_arch(own) == {"sm_80": 110, "sm_90": 70, "sm_75": 7}


def test_drivers_are_those_of_torchs_cuda_and_of_the_runtimes_beside_it() -> None:
    found = insight.drivers([environment(distribution("nvidia-cuda-runtime", "13.0.96"))], SOURCES.facts)
    assert [(one.cuda, one.minimum, one.native) for one in found] == [
        ("12.6", "525.60.13", "560.28.03"),
        ("13.0", "580", "580.65.06"),
    ]


def test_the_nearest_image_has_the_torch_and_cuda_and_says_what_would_change() -> None:
    found = nearest(environment(distribution("torch", "2.7.1"), distribution("transformers", "4.40.0")), IMAGES)
    assert found is not None and found.name == "cu126-torch27"
    assert "torch 2.7.1" in found.same and any(one.startswith("transformers 4.40.0 to ") for one in found.changes)


def test_without_a_torch_that_can_be_compared_nothing_is_near() -> None:
    assert nearest(environment(torch=("", "")), IMAGES) is None
    assert nearest(environment(torch=("odd", "12.6")), IMAGES) is None
