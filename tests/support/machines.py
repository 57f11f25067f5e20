"""Machines for doctor: every GPU, memory, number and framework that its rules tell apart."""

from collections.abc import Iterator, Mapping
from itertools import product

from validate.doctor.advice import FRAMEWORKS, GB, STRATEGIES, Disk, Goal, Gpu, Hardware, Stack

PACKAGES: Mapping[str, str] = {
    "flash-attn": "2.8.3",
    "xformers": "0.0.31",
    "bitsandbytes": "0.49.1",
    "transformers": "4.57.6",
    "deepspeed": "0.18.9",
}
ARCHS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
CODE = {"flash-attn": ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120")}
EXAMPLES = "/opt/truetag/examples"
CAPABILITIES = ((6, 1), (7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0))
_GIGABYTES = (6, 16, 24, 80)
_COUNTS = (1, 2, 8)
_SIZES = (1.0, 7.0, 70.0)


def gpu(capability: tuple[int, int] = (9, 0), gigabytes: float = 80, name: str = "G", mig: bool = False) -> Gpu:
    return Gpu(name=name, capability=capability, memory=int(gigabytes * GB), mig=mig)


def stack(**more: object) -> Stack:
    plain = {"torch": "2.7.1+cu126", "archs": ARCHS, "packages": PACKAGES, "code": CODE, "examples": EXAMPLES}
    return Stack(**{**plain, **more})  # type: ignore[arg-type]


def machine(*gpus: Gpu, free: float = 500) -> Hardware:
    disks = (Disk(path="/workspace", holds="checkpoints", free=int(free * GB)),)
    return Hardware(gpus=gpus, cpus=8, memory=64 * GB, shm=16 * GB, disks=disks)


def machines() -> Iterator[Hardware]:
    """One without a GPU, every GPU in every number, and a few that are mixed."""
    yield machine()
    for capability, gigabytes, count in product(CAPABILITIES, _GIGABYTES, _COUNTS):
        yield machine(*[gpu(capability, gigabytes)] * count)
    yield machine(gpu((6, 1), 24, "GTX 1080"), gpu((8, 0), 40, "A100"), gpu((9, 0), 80, "H100"))
    yield machine(gpu((9, 0), 80, "H100"), gpu((7, 5), 16, "T4"))
    yield machine(*[gpu((8, 0), 10, "A100 MIG 1g.10gb", mig=True)] * 2)


def stacks() -> Iterator[Stack]:
    """With everything, without anything, without each package, and with code for few GPUs."""
    yield stack()
    yield stack(packages={})
    yield stack(code={"flash-attn": ("sm_80", "sm_90")}, archs=("sm_80", "sm_90"))
    for left_out in PACKAGES:
        yield stack(packages={name: version for name, version in PACKAGES.items() if name != left_out})


def goals() -> Iterator[Goal]:
    """Every framework and way to share the work, a small, a usual and a large model."""
    for framework, strategy, billions in product(FRAMEWORKS, (None, *STRATEGIES), _SIZES):
        yield Goal(billions=billions, framework=framework, strategy=strategy)
