"""Simulated machines: each fault is named, explained, and never blamed on the image that ran there."""

import ctypes
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.building.naming import why_withheld
from tests.validate.environment.test_nvml import Library
from validate import hints, host_faults, report
from validate.claims import Claim, Tier
from validate.environment import host, nvml
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.harness.forked import describe_error
from validate.judge import OF_HOST, ClaimVerdict, Verdict, judge
from validate.judging import Status

WELL = {
    "memory": [1, 9],
    "ecc": [0],
    "remapped": [3, 0, 0, 0],
    "mig": [0, 0],
    "mode": [0],
    "fabric": 3,
}
BUS = "sys/bus/pci/devices/0000:3b:00.0"
XID = "6,2,2,-;NVRM: Xid (PCI:0000:3b:00): {}, pid='<unknown>', said\n"
HOST = {
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n",
    f"{BUS}/vendor": "0x10de\n",
    f"{BUS}/class": "0x030200\n",
    f"{BUS}/config": "\x10",
    "dev/nvidiactl": "",
    "dev/nvidia-uvm": "",
    "dev/nvidia-caps": "",
    "dev/kmsg": XID.format(31),  # a program's own
}
FAULTS = yaml.safe_load(Path(__file__).with_name("test_host_faults.yaml").read_text())
WRONG = ArithmeticError("wrong results")


class AcceleratorError(RuntimeError):
    """As torch raises it from 2.8 on."""

    def __init__(self, message: str, error_code: int) -> None:
        super().__init__(message)
        self.error_code = error_code


class DistBackendError(RuntimeError):
    """As torch.distributed raises it."""


COUNTING = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error {}"
)
REGISTERING = "NCCL error\nLast error:\nCall to ibv_reg_mr failed with error {}"
NVLS = "NCCL error\nLast error:\nFailed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401"
BUSY, ECC = (
    "all CUDA-capable devices are busy or unavailable",
    "uncorrectable ECC error encountered",
)
HOSTS: dict[str, BaseException] = {
    "fabric manager": nvml.DriverError("cuInit answers 802", call="cuInit", code=802),
    "fabric manager, by torch": RuntimeError(COUNTING.format("802: system not yet initialized")),
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
    "WSL": RuntimeError(COUNTING.format("500: named symbol not found")),
    "multicast": DistBackendError(NVLS),
    "ptrace": RuntimeError("pidfd_getfd: Operation not permitted"),
    "locked memory": DistBackendError(REGISTERING.format("Cannot allocate memory")),
}
"""Errors whose numbers are the machine's."""
IMAGES: dict[str, BaseException] = {
    "its own libcuda": nvml.DriverError("cuInit answers 803", call="cuInit", code=803),
    "hidden devices": RuntimeError(COUNTING.format("100: no CUDA-capable device is detected")),
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
    "a wrong address": DistBackendError(REGISTERING.format("Bad address")),
    "results": ArithmeticError("wrong results, Error 802: system not yet initialized"),
}
"""Errors like them that say nothing of the machine."""


def look(
    patch: pytest.MonkeyPatch, root: Path, files: dict[str, str | None], gpu: Any, error: str
) -> list[str]:
    for name, text in {**HOST, **files}.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="latin-1")

    def health(_folder: object) -> list[dict[str, Any]]:
        if error:
            raise nvml.DriverError(error)
        return [{**WELL, "instances": False, "processes": 0, **one} for one in ({}, gpu)]

    patch.setattr(nvml, "read_health", health)
    return host_faults.of_machine(host.read(root))


def judged(
    error: BaseException, faults: list[str], tier: Tier = Tier.GPU
) -> tuple[ClaimVerdict, str]:
    """A claim whose probe met this error on a host with these faults, and why the image has no name."""
    claim = Claim(check="device", subject="devices", tier=tier, probe="gpu.device", statement="-")
    seen = {
        "cuda": {"error": describe_error(error)},
        "torch": {},
        "nvml": {},
        "libcuda": [],
        "environment": {},
    }
    found = Measurement(subject="devices", seconds=1.0, evidence=seen)
    record = Record(
        probe="gpu.device", outcome=Outcome.COMPLETED, seconds=1.0, measurements=(found,)
    )
    evidence = Evidence(
        image="i", digest="d", records=(record,), host={"faults": faults}, claims=(claim,)
    )
    verdict = judge(evidence.claim_set, evidence)
    return verdict.claims[0], why_withheld(verdict, evidence, tuple(Tier))


def blames_the_host(one: ClaimVerdict, withheld: str) -> None:
    assert (
        one.status is Status.UNPROVEN
        and one.reason.startswith(OF_HOST)
        and "; here: " in one.reason
    )
    assert withheld == one.reason


def test_a_healthy_host_has_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert look(monkeypatch, tmp_path, {}, {}, "") == []
    assert look(monkeypatch, tmp_path, {}, {}, "") == host_faults.of_machine(
        host.read(tmp_path / "no GPU at all")
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_host_is_named_and_not_the_images(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = {"files": {}, "gpu": {}, "error": "", **FAULTS[fault]}
    found = look(monkeypatch, tmp_path, one["files"], one["gpu"], one["error"])
    (hint,) = hints.find(found)
    assert hint.id == one["row"], "what to do about it stands in hints.yaml"
    said = "\n".join(report.lines(Verdict(image="i", digest="d", claims=(), faults=tuple(found))))
    assert f"HOST  {found[0]}\n    hint: {hint.cause} {hint.fix}" in said
    blames_the_host(*judged(WRONG, found))
    assert judged(WRONG, found, Tier.STATIC)[0].status is Status.FAIL, (
        "files say nothing of a machine"
    )


@pytest.mark.parametrize("name", HOSTS)
def test_an_error_with_a_number_of_the_machine_is_not_the_images(name: str) -> None:
    blames_the_host(*judged(HOSTS[name], []))
    assert judged(HOSTS[name], [], Tier.CPU)[0].status is Status.FAIL, "no GPU takes part"


@pytest.mark.parametrize("name", IMAGES)
def test_the_images_own_faults_stay_its_own(name: str) -> None:
    assert judged(IMAGES[name], [])[0].status is Status.FAIL


def test_the_error_of_one_rank_is_found() -> None:
    ranks = {"ranks": [{"comparisons": {}}, {"error": describe_error(HOSTS["multicast"])}]}
    assert host_faults.of_evidence(ranks) == "NCCL can't set NVLink SHARP's multicast up"
    assert (
        host_faults.of_evidence(
            {"ranks": [{"error": 0.1}, {"error": describe_error(IMAGES["results"])}]}
        )
        == ""
    )


def test_health_is_read_from_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ill(Library):
        def _nvmlDeviceGetRemappedRows(self, _device: object, *counts: Any) -> int:  # noqa: N802
            for number, count in enumerate(counts):
                count._obj.value = number
            return 0

        def _nvmlDeviceGetMigMode(self, *_: object) -> int:  # noqa: N802
            return 3

        def _nvmlDeviceGetGpuFabricInfo(self, _device: object, info: Any) -> int:  # noqa: N802
            ctypes.memset(ctypes.addressof(info._obj) + 24, 2, 1)
            return 0

    monkeypatch.setattr(nvml, "_load", lambda *_: Ill(0))
    (found,) = nvml.read_health()
    assert (found["remapped"], found["fabric"], "mig" in found) == ([0, 1, 2, 3], 2, False)
    assert [text.split()[0] for text in host_faults.of_gpu(found)] == ["rows", "the"]
