"""Simulated machines: each fault is named, explained, and never blamed on the image that ran there."""

import ctypes
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.building.validating import why_withheld
from tests.validate.environment.test_nvml import Library
from validate import hints, report
from validate.claims import Claim, Tier
from validate.environment import host, nvml
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import OF_HOST, ClaimVerdict, Verdict, judge
from validate.judging import Status

WELL = {"memory": [1, 9], "ecc": [0], "remapped": [3, 0, 0, 0], "mig": [0, 0], "mode": [0], "fabric": 3}
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
FAULTS = yaml.safe_load(Path(__file__).with_name("host_faults.yaml").read_text())
TOLD = (
    "cuda: cuInit answers 802",
    "torch: RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    "rank 1: nvls.cc:295 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory",
    "rank 0: pidfd_getfd: Operation not permitted",
    "rank 0: NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
)
"""What claims say where only the failure tells of the machine."""


def look(patch: pytest.MonkeyPatch, root: Path, files: dict[str, str | None], gpu: Any, error: str) -> list[str]:
    for name, text in {**HOST, **files}.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="latin-1")

    def health(_folder: object) -> list[dict[str, Any]]:
        if error:
            raise nvml.DriverError(error)
        return [{**WELL, "instances": False, "processes": 0, **one} for one in ({}, gpu)]

    patch.setattr(nvml, "health", health)
    return host.look(root)


def judged(reason: str, faults: list[str], tier: Tier = Tier.GPU) -> tuple[ClaimVerdict, str]:
    """A claim that fails with this reason on a host with these faults, and why the image has no name."""
    claim = Claim(id="G0", subject="devices", tier=tier, probe="gpu.device", statement="-")
    found = Measurement(subject="devices", seconds=1.0, evidence={"cuda": {"error": reason}, "torch": {}, "nvml": {}})
    record = Record(probe="gpu.device", outcome=Outcome.COMPLETED, seconds=1.0, measurements=(found,))
    evidence = Evidence(image="i", digest="d", records=(record,), host={"faults": faults}, claims=(claim,))
    verdict = judge(evidence.claim_set, evidence)
    return verdict.claims[0], why_withheld(verdict, evidence, tuple(Tier))


def blames_the_host(one: ClaimVerdict, withheld: str) -> None:
    assert one.status is Status.UNPROVEN and one.reason.startswith(OF_HOST) and "; here: " in one.reason
    assert withheld == one.reason


def test_a_healthy_host_has_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert look(monkeypatch, tmp_path, {}, {}, "") == []
    assert look(monkeypatch, tmp_path, {}, {}, "") == host.look(tmp_path / "no GPU at all")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_host_is_named_and_not_the_images(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = {"files": {}, "gpu": {}, "error": "", **FAULTS[fault]}
    found = look(monkeypatch, tmp_path, one["files"], one["gpu"], one["error"])
    (hint,) = hints.find(found)
    assert (hint.id, hint.host) == (one["row"], True)
    said = "\n".join(report.lines(Verdict(image="i", digest="d", claims=(), faults=tuple(found))))
    assert f"HOST  {found[0]}\n    hint: {hint.cause} {hint.fix}" in said
    blames_the_host(*judged("wrong results", found))
    assert judged("wrong results", found, Tier.STATIC)[0].status is Status.FAIL, "files say nothing of a machine"


@pytest.mark.parametrize("reason", TOLD)
def test_a_failure_that_tells_of_the_host_is_not_the_images(reason: str) -> None:
    blames_the_host(*judged(reason, []))


@pytest.mark.parametrize("reason", ["cuInit answers 803", "no kernel image is available", "wrong results"])
def test_the_images_own_faults_stay_its_own(reason: str) -> None:
    assert judged(reason, [])[0].status is Status.FAIL


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
    (found,) = nvml.health()
    assert (found["remapped"], found["fabric"], "mig" in found) == ([0, 1, 2, 3], 2, False)
    assert [text.split()[0] for text in host.of_gpu(found)] == ["rows", "the"]
