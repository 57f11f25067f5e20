"""What of the machine itself keeps work from its GPUs, whoever built the image: the driver's module and device files,
the GPUs' health, the kernel's log. Read outside of containers; inside, as far as it shows there.

Each finding is a text that hints.yaml knows: cause and fix stand there.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_LOGGED = re.compile(
    r"NVRM: (?:Xid \(\S+\): (?:48|64|74|79|94|95|119|120|140), |GPU \S+: RmInitAdapter failed|API mismatch).*"
)
"""Of hardware and driver (NVIDIA's "Xid Errors"); 13, 31 and 43 come of programs."""
_CLASSES = (b"0x0300", b"0x0302")
_GONE = b"\xff" * 4
_EXCLUSIVE, _PROHIBITED, _FABRIC_READY, _FABRIC_NONE = 3, 2, 3, 0
"""NVML_COMPUTEMODE_*, NVML_GPU_FABRIC_STATE_COMPLETED and _NOT_SUPPORTED (nvml.h)."""


def look(root: Path = Path("/"), folder: Path | None = None) -> list[str]:
    """What is wrong here; none where there is no NVIDIA GPU. `folder` holds libnvidia-ml.so.1, if the loader does not
    find it."""
    from validate.environment import nvml  # most machines that build have no GPU

    try:
        gpus, error = nvml.health(folder), ""
    except nvml.DriverError as failure:
        gpus, error = [], str(failure)
    found = [*_of_system(root, error), *(f"GPU {at}: {text}" for at, gpu in enumerate(gpus) for text in of_gpu(gpu))]
    if any(gpu["instances"] for gpu in gpus) and not (root / "dev/nvidia-caps").exists():
        found.append("/dev/nvidia-caps: no such device on the host, and MIG's instances need it")
    return found


def _of_system(root: Path, error: str) -> Iterator[str]:
    """`error`: what NVML said instead of an answer."""
    devices = sorted((root / "sys/bus/pci/devices").glob("*"))
    bus = [
        one for one in devices if _read(one / "vendor").strip() == b"0x10de" and _read(one / "class")[:6] in _CLASSES
    ]
    yield from (f"GPU {one.name} has fallen off the bus" for one in bus if _read(one / "config")[:4] == _GONE)
    if not _read(root / "proc/driver/nvidia/version"):
        if error and (root / "usr/lib/wsl/lib/libcuda.so.1").exists():
            yield f"Windows' driver does not answer: {error}"
        elif bus and not (root / "dev/dxg").exists():
            yield f"no NVIDIA kernel module is loaded for {len(bus)} GPU{'s' * (len(bus) > 1)} on the bus"
        return
    if error:
        yield f"the host's driver does not answer: {error}"
    nodes = (root / "dev/nvidiactl", root / "dev/nvidia-uvm")
    yield from (f"/dev/{node.name}: no such device on the host" for node in nodes if not node.exists())
    yield from list(dict.fromkeys(_LOGGED.findall(_read(root / "dev/kmsg").decode(errors="replace"))))[-3:]


def of_gpu(gpu: Mapping[str, Any]) -> Iterator[str]:
    """What NVML tells of its health (nvml.health)."""
    if count := gpu.get("ecc", [0])[0]:
        yield f"{count} uncorrectable ECC errors since the driver started"
    if any(gpu.get("remapped", [])[2:]):
        yield "rows of memory wait for remapping, or could not be remapped"
    if gpu.get("mig", [0])[0] and not gpu["instances"]:
        yield "MIG is on and has no instance"
    mode, (used, total) = gpu.get("mode", [0])[0], gpu.get("memory", [0, 0])
    if mode == _PROHIBITED or (mode == _EXCLUSIVE and gpu["processes"]):
        yield "its compute mode lets no further process in"
    if used * 2 > total:
        yield f"other processes hold {used >> 20} of {total >> 20} MiB"
    if (state := gpu.get("fabric", _FABRIC_NONE)) not in (_FABRIC_NONE, _FABRIC_READY):
        yield f"the NVLink fabric is not ready (state {state})"


def _read(path: Path) -> bytes:
    """As much as there is now; none where it may not be read. The kernel's log gives a record a read."""
    found = b""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while more := os.read(file, 1 << 16):
                found += more
        finally:
            os.close(file)
    return found
