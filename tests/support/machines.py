"""Machines and images for the tests of doctor."""

from collections.abc import Mapping

from validate.doctor.advice import GB, Disk, Gpu, Hardware, Stack

PACKAGES: Mapping[str, str] = {
    "flash-attn": "2.8.3",
    "xformers": "0.0.31",
    "bitsandbytes": "0.49.1",
    "transformers": "4.57.6",
}
ARCHS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
CODE = {"flash-attn": ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120")}


def gpu(
    capability: tuple[int, int] = (9, 0), gigabytes: float = 80, name: str = "G", mig: bool = False
) -> Gpu:
    return Gpu(name=name, capability=capability, memory=int(gigabytes * GB), mig=mig)


def stack(**changes: object) -> Stack:
    plain = {"torch": "2.7.1+cu126", "archs": ARCHS, "packages": PACKAGES, "code": CODE}
    return Stack(**{**plain, **changes})  # type: ignore[arg-type]


def machine(*gpus: Gpu) -> Hardware:
    disks = (Disk(path="/workspace", holds="checkpoints", free=500 * GB),)
    return Hardware(gpus=gpus, cpus=8, memory=64 * GB, shm=16 * GB, disks=disks)
