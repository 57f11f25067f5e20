"""Whether an environment runs on a machine: what speaks against it, and what nobody looked at."""

from typing import Any

import pytest

from images.audit import expected, machine, survey
from images.audit.device_code import LibraryCode
from images.planning import chooser
from tests.support.audit_samples import code, distribution, environment
from tests.support.sources import SOURCES
from validate.judging import Finding, Status

FACTS = SOURCES.facts
GB, MB = 1 << 30, 1 << 20


def judge_on(
    surveyed: dict[str, Any], libraries: list[LibraryCode], gpu: str, driver: str = ""
) -> Finding:
    """Judge whether an environment with these libraries runs on a GPU with a driver."""
    platform = survey.platform_of(surveyed)
    facts = FACTS.on(platform) if platform else FACTS
    target = chooser.machine_from_options([gpu], [], driver)
    image = expected.describe_as_image(surveyed, libraries, facts).image

    claim = machine.machine_claim(surveyed, image, facts, target)
    evidence = machine.machine_evidence(surveyed, libraries, target)
    return machine.judge("machine", claim.expect, evidence)


TORCH = code("torch/lib/libtorch_cuda.so", "torch", sm_80=GB, sm_86=GB, sm_90=GB)
TORCH_ON_ARM = code("torch/lib/libtorch_cuda.so", "torch", sm_80=GB, sm_90=GB, sm_120=GB)
TORCHAO = code("torchao/_C_cutlass_90a.abi3.so", "torchao", sm_90a=MB)
OLD_VLLM = code("vllm/_C.abi3.so", "vllm", sm_80=MB)
RUNTIME_12 = distribution("nvidia-cuda-runtime-cu12", "12.9.79")
RUNTIME_13 = distribution("nvidia-cuda-runtime", "13.0.96")


@pytest.mark.parametrize(
    ("gpu", "driver", "obstacle"),
    [
        ("RTX 5090", "570.86", "torch has no code for sm_120"),
        ("RTX 5090", "550.90", "sm_120 (Blackwell) needs driver 570 or newer"),
        ("RTX 4090", "470.57", "CUDA 12 needs driver 525.60.13 or newer"),
        ("H100", "550.90", "vllm has no code for sm_90"),
        ("GB10", "580.95", "torch is for x86-64, and this GPU's host processor is ARM"),
        ("A100", "550.90", ""),
    ],
)
def test_what_keeps_torch_from_a_machine_is_a_fault(gpu: str, driver: str, obstacle: str) -> None:
    surveyed = environment(distribution("torch", "2.7.1"))

    finding = judge_on(surveyed, [TORCH, OLD_VLLM], gpu, driver)

    assert finding.status is (Status.FAIL if obstacle else Status.PASS)
    assert obstacle in finding.reason


@pytest.mark.parametrize(
    ("torch", "processor", "gpu", "obstacle"),
    [
        ("2.13.0+cpu", "x86_64", "T4", "torch 2.13.0+cpu is built without CUDA"),
        ("2.8.0+rocm6.4", "x86_64", "A100", "torch 2.8.0+rocm6.4 is built without CUDA"),
        ("2.8.0+cpu", "aarch64", "GB10", "torch 2.8.0+cpu is built without CUDA"),
        ("2.8.0+cpu", "aarch64", "T4", "its libraries are for ARM processors"),
        ("2.8.0+cpu", "x86_64", "GB10", "its libraries are for x86-64"),
    ],
)
def test_a_torch_without_cuda_runs_on_no_gpu(
    torch: str, processor: str, gpu: str, obstacle: str
) -> None:
    surveyed = environment(distribution("torch", torch), torch=(torch, ""), processor=processor)

    finding = judge_on(surveyed, [], gpu)

    assert finding.status is Status.FAIL
    assert obstacle in finding.reason


@pytest.mark.parametrize(
    ("gpu", "status"), [("GB10", Status.PASS), ("GH200", Status.PASS), ("H100", Status.FAIL)]
)
def test_a_torch_for_arm_runs_on_superchips_and_boards(gpu: str, status: Status) -> None:
    surveyed = environment(
        distribution("torch", "2.11.0"), torch=("2.11.0+cu130", "13.0"), processor="aarch64"
    )

    finding = judge_on(surveyed, [TORCH_ON_ARM], gpu)

    assert finding.status is status, finding.reason


def test_a_torch_for_a_cuda_that_nobody_knows_is_held_to_its_code() -> None:
    surveyed = environment(distribution("torch", "9.0"), torch=("9.0", "99.0"))

    assert judge_on(surveyed, [TORCH], "A100").status is Status.PASS
    assert "torch has no code for sm_120" in judge_on(surveyed, [TORCH], "RTX 5090").reason


def test_nothing_runs_where_nothing_was_looked_at() -> None:
    finding = judge_on(environment(distribution("numpy", "2.3.5"), torch=("", "")), [], "T4")

    assert finding.status is Status.UNPROVEN
    assert "no library here has code for GPUs" in finding.reason


@pytest.mark.parametrize(
    ("runtime", "driver", "obstacle"),
    [
        (RUNTIME_12, "470.57", "CUDA 12 needs driver 525.60.13 or newer"),
        (RUNTIME_13, "550.90", "CUDA 13 needs driver 580 or newer"),
        (RUNTIME_12, "550.90", ""),
        (RUNTIME_13, "580.95", ""),
    ],
)
def test_without_torch_the_installed_runtime_says_which_driver_is_needed(
    runtime: dict[str, Any], driver: str, obstacle: str
) -> None:
    surveyed = environment(runtime, torch=("", ""))

    finding = judge_on(surveyed, [code("cupy/cub.so", "cupy", sm_80=MB)], "A100", driver)

    assert finding.status is (Status.FAIL if obstacle else Status.PASS)
    assert obstacle in finding.reason


def test_libraries_that_a_package_may_work_without_stand_in_the_reason() -> None:
    vllm = [
        code("vllm/_C.abi3.so", "vllm", sm_80=MB),
        code("vllm/_flashmla_C.abi3.so", "vllm", sm_90a=MB),
    ]

    finding = judge_on(environment(torch=("", "")), vllm, "A100")

    assert finding.status is Status.PASS
    assert "which have no code for it: vllm/_flashmla_C.abi3.so" in finding.reason


@pytest.mark.parametrize("gpu", ["A100", "RTX 4090"])
def test_a_package_whose_compiled_code_is_an_extra_runs_without_it(gpu: str) -> None:
    surveyed = environment(distribution("torch", "2.7.1"))

    finding = judge_on(surveyed, [TORCH, TORCHAO], gpu)

    assert finding.status is Status.PASS
    assert "which have no code for it: torchao/_C_cutlass_90a.abi3.so" in finding.reason


def test_extras_alone_prove_nothing() -> None:
    surveyed = environment(distribution("torchao", "0.17.0"), torch=("", ""))

    assert judge_on(surveyed, [TORCHAO], "H100").status is Status.UNPROVEN


def test_evidence_of_an_old_run_left_torch_to_the_facts() -> None:
    expect = {"machine": "T4 (sm_75)", "against": []}
    evidence = {"packages": {"torch": {"75": "no"}, "torchao": {"75": "PTX"}}}

    assert machine.judge("machine", expect, evidence).status is Status.PASS
