"""Faults of simulated machines are named, explained, and never blamed on an image."""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.building.naming import why_withheld
from tests.validate.environment.test_nvml import NOT_SUPPORTED, SUCCESS, OneGpu
from validate import hints, host_faults, report
from validate.claims import Claim, Tier
from validate.environment import host, nvml
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.harness.forked import describe_error
from validate.judge import OF_HOST, ClaimVerdict, Verdict, judge
from validate.judging import Status

HEALTHY_GPU = {
    "memory": [1, 9],
    "ecc": [0],
    "remapped": [3, 0, 0, 0],
    "mig": [0, 0],
    "mode": [0],
    "fabric": 3,
    "instances": False,
    "processes": 0,
}
"""What NVML tells of a GPU that is well (nvml.read_health)."""
PCI_DEVICE = "sys/bus/pci/devices/0000:3b:00.0"
XID_OF_A_PROGRAM = "6,2,2,-;NVRM: Xid (PCI:0000:3b:00): 31, pid='<unknown>', said\n"
HEALTHY_HOST = {
    "proc/driver/nvidia/version": (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n"
    ),
    f"{PCI_DEVICE}/vendor": "0x10de\n",
    f"{PCI_DEVICE}/class": "0x030200\n",
    f"{PCI_DEVICE}/config": "\x10",
    "dev/nvidiactl": "",
    "dev/nvidia-uvm": "",
    "dev/nvidia-caps": "",
    "dev/kmsg": XID_OF_A_PROGRAM,
}
"""Files of a host with a GPU that is well."""
FAULTS = yaml.safe_load(Path(__file__).with_name("test_host_faults.yaml").read_text())
UNKNOWN_ERROR = nvml.DriverError("cuInit answers 999", call="cuInit", code=999)
"""A failure whose number says nothing of the cause."""


class AcceleratorError(RuntimeError):
    """As torch raises it from 2.8 on."""

    def __init__(self, message: str, error_code: int) -> None:
        super().__init__(message)
        self.error_code = error_code


class DistBackendError(RuntimeError):
    """As torch.distributed raises it."""


def error_at_start(number_and_text: str) -> RuntimeError:
    """What `torch.cuda.init` raises where the driver does not start."""
    return RuntimeError(
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
        "calling NumCudaDevices() that might have already set an error? "
        f"Error {number_and_text}"
    )


def error_of_registering_memory(text: str) -> DistBackendError:
    """What NCCL raises where InfiniBand can't use memory; `text` is that of the kernel's number."""
    return DistBackendError(f"NCCL error\nLast error:\nCall to ibv_reg_mr failed with error {text}")


MULTICAST_FAILS = (
    "NCCL error\nLast error:\n"
    "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401"
)
BUSY = "all CUDA-capable devices are busy or unavailable"
ECC = "uncorrectable ECC error encountered"
ERRORS_OF_THE_MACHINE: dict[str, BaseException] = {
    "fabric manager": nvml.DriverError("cuInit answers 802", call="cuInit", code=802),
    "fabric manager, by torch": error_at_start("802: system not yet initialized"),
    "fabric manager, by the runtime": AcceleratorError(
        "CUDA error: system not yet initialized", 802
    ),
    "taken": nvml.DriverError("cuInit answers 46", call="cuInit", code=46),
    "taken, by torch": RuntimeError(
        f"CUDA error: {BUSY}\nCUDA kernel errors might be asynchronously reported"
    ),
    "memory": AcceleratorError("CUDA error", 214),
    "memory, before torch 2.8": RuntimeError(f"CUDA error: {ECC}"),
    "NVLink": AcceleratorError("CUDA error", 220),
    "WSL": error_at_start("500: named symbol not found"),
    "multicast": DistBackendError(MULTICAST_FAILS),
    "ptrace": RuntimeError("pidfd_getfd: Operation not permitted"),
    "locked memory": error_of_registering_memory("Cannot allocate memory"),
}
"""Errors whose numbers stand for a fault of the machine."""
ERRORS_OF_THE_IMAGE: dict[str, BaseException] = {
    "its own libcuda": nvml.DriverError("cuInit answers 803", call="cuInit", code=803),
    "hidden devices": error_at_start("100: no CUDA-capable device is detected"),
    "code for another GPU": AcceleratorError("CUDA error: no kernel image is available", 209),
    "a library's symbol": AcceleratorError("CUDA error: named symbol not found", 500),
    "NVML's own number": nvml.DriverError("nvmlInit answers 46", call="nvmlInit", code=46),
    "words without a number": RuntimeError(f"the log has: {BUSY}"),
    "words of another program": ValueError(f"CUDA error: {ECC}"),
    "NCCL in another place": DistBackendError(
        "NCCL error: unhandled system error\nLast error:\nnet.cc:1 (TCP)"
    ),
    "multicast in words": RuntimeError(
        "nvls.cc:295 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory"
    ),
    "a file that is closed": RuntimeError("pidfd_getfd: Bad file descriptor"),
    "a wrong address": error_of_registering_memory("Bad address"),
    "results": ArithmeticError("wrong results, Error 802: system not yet initialized"),
}
"""Errors that look like these, and say nothing of the machine."""


def faults_of_machine(
    patch: pytest.MonkeyPatch,
    root: Path,
    *,
    files: Mapping[str, str | None] | None = None,
    gpu: Mapping[str, Any] | None = None,
    error: str = "",
) -> list[str]:
    """The faults of a simulated host with two GPUs, which is well but for what is given.

    files: path -> content of a file that differs; None: it is missing.
    gpu: what NVML tells otherwise of the second GPU.
    error: what NVML says instead of any answer.
    """
    for path, content in {**HEALTHY_HOST, **(files or {})}.items():
        if content is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content, encoding="latin-1")

    def read_health(_folder: object) -> list[dict[str, Any]]:
        if error:
            raise nvml.DriverError(error)
        return [dict(HEALTHY_GPU), {**HEALTHY_GPU, **(gpu or {})}]

    patch.setattr(nvml, "read_health", read_health)
    return host_faults.of_machine(host.read(root))


def judge_error(
    error: BaseException, *, faults: list[str] | None = None, tier: Tier = Tier.GPU
) -> tuple[ClaimVerdict, str]:
    """Judge a claim whose probe met this error on a host with these faults.

    Returns the claim's verdict, and why the image does not get its name.
    """
    claim = Claim(check="device", subject="devices", tier=tier, probe="gpu.device", statement="-")
    measured = {
        "cuda": {"error": describe_error(error)},
        "torch": {},
        "nvml": {},
        "libcuda": [],
        "environment": {},
    }
    record = Record(
        probe="gpu.device",
        outcome=Outcome.COMPLETED,
        seconds=1.0,
        measurements=(Measurement(subject="devices", seconds=1.0, evidence=measured),),
    )
    evidence = Evidence(
        image="i",
        digest="d",
        records=(record,),
        host={"faults": faults or []},
        claims=(claim,),
    )
    verdict = judge(evidence.claim_set, evidence)
    return verdict.claims[0], why_withheld(verdict, evidence, tuple(Tier))


def assert_blames_the_host(judged: ClaimVerdict, withheld: str) -> None:
    assert judged.status is Status.UNPROVEN
    assert judged.reason.startswith(OF_HOST)
    assert "; so this failed: " in judged.reason
    assert withheld == judged.reason


def test_a_healthy_host_has_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert faults_of_machine(monkeypatch, tmp_path) == []


def test_a_host_without_a_gpu_has_no_fault(tmp_path: Path) -> None:
    assert host_faults.of_machine(host.read(tmp_path / "no GPU at all")) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_host_is_named_and_not_the_images(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = dict(FAULTS[name])
    hint_id = row.pop("row")

    faults = faults_of_machine(monkeypatch, tmp_path, **row)

    # What to do about it stands in hints.yaml.
    (hint,) = hints.find(faults)
    assert hint.id == hint_id
    lines = report.lines(Verdict(image="i", digest="d", claims=(), faults=tuple(faults)))
    assert f"HOST  {faults[0]}\n    hint: {hint.cause} {hint.fix}" in "\n".join(lines)
    assert_blames_the_host(*judge_error(UNKNOWN_ERROR, faults=faults))
    # Files say nothing of a machine.
    of_files, _ = judge_error(UNKNOWN_ERROR, faults=faults, tier=Tier.STATIC)
    assert of_files.status is Status.FAIL


@pytest.mark.parametrize("name", ERRORS_OF_THE_MACHINE)
def test_an_error_with_a_number_of_the_machine_is_not_the_images(name: str) -> None:
    error = ERRORS_OF_THE_MACHINE[name]

    assert_blames_the_host(*judge_error(error))
    # In the cpu tier no GPU takes part.
    of_cpu, _ = judge_error(error, tier=Tier.CPU)
    assert of_cpu.status is Status.FAIL


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fabric manager", "nvidia-fabricmanager"),
        ("taken", "nvidia-smi -c DEFAULT"),
        ("ptrace", "--cap-add SYS_PTRACE"),
        ("locked memory", "memlock=-1"),
        ("memory", "mend this machine"),
    ],
)
def test_the_step_mends_the_fault_of_the_machine(name: str, words: str) -> None:
    judged, _ = judge_error(ERRORS_OF_THE_MACHINE[name])

    assert words in judged.next_step


@pytest.mark.parametrize("name", ERRORS_OF_THE_IMAGE)
def test_the_images_own_faults_stay_its_own(name: str) -> None:
    judged, _ = judge_error(ERRORS_OF_THE_IMAGE[name])

    assert judged.status is Status.FAIL


def test_the_error_of_one_rank_explains_the_evidence_of_all() -> None:
    error = describe_error(ERRORS_OF_THE_MACHINE["multicast"])
    evidence = {"ranks": [{"comparisons": {}}, {"error": error}]}

    assert host_faults.of_evidence(evidence) == "NCCL can't set NVLink SHARP's multicast up"


def test_a_number_called_error_and_an_error_of_the_image_explain_nothing() -> None:
    error = describe_error(ERRORS_OF_THE_IMAGE["results"])
    evidence = {"ranks": [{"error": 0.1}, {"error": error}]}

    assert host_faults.of_evidence(evidence) == ""


FABRIC_STATE_OFFSET, FABRIC_IN_PROGRESS = 24, 2
"""Offset in nvmlGpuFabricInfo_t, and NVML_GPU_FABRIC_STATE_IN_PROGRESS (nvml.h)."""


class NvmlOfAnIllGpu(OneGpu):
    """NVML on a machine whose GPU waits for remapped rows and for its fabric, and has no MIG."""

    def _nvmlDeviceGetRemappedRows(self, _device: object, *counts: Any) -> int:  # noqa: N802
        for number, count in enumerate(counts):
            count._obj.value = number
        return SUCCESS

    def _nvmlDeviceGetMigMode(self, *_: object) -> int:  # noqa: N802
        return NOT_SUPPORTED

    def _nvmlDeviceGetGpuFabricInfo(self, _device: object, info: Any) -> int:  # noqa: N802
        state = ctypes.addressof(info._obj) + FABRIC_STATE_OFFSET
        ctypes.memset(state, FABRIC_IN_PROGRESS, 1)
        return SUCCESS


def test_health_is_read_from_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_load", lambda *_: NvmlOfAnIllGpu())

    (health,) = nvml.read_health()

    assert health["remapped"] == [0, 1, 2, 3]
    assert health["fabric"] == FABRIC_IN_PROGRESS
    assert "mig" not in health
    first_words = [fault.split()[0] for fault in host_faults.of_gpu(health)]
    assert first_words == ["rows", "the"]
