"""What of the machine itself keeps work from its GPUs, whoever built the image: the driver's module and device files,
the GPUs' health, the kernel's log. Read outside of containers; inside, as far as it shows there.

Each finding is a text that hints.yaml knows: cause and fix stand there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from validate.environment import nvml

_XID = re.compile(r"NVRM: Xid \(\S+\): (?:48|64|74|79|94|95|119|120|140), .*")
"""Of hardware and driver (NVIDIA's "Xid Errors"); 13, 31 and 43 come of programs."""
_GPU_CLASSES = ("0x0300", "0x0302")
_GONE = b"\xff" * 4
_EXCLUSIVE, _PROHIBITED, _FABRIC_READY, _FABRIC_NONE = 3, 2, 3, 0
"""NVML_COMPUTEMODE_*, NVML_GPU_FABRIC_STATE_COMPLETED and _NOT_SUPPORTED (nvml.h)."""
_LOG_BYTES = 8 << 20


def look(root: Path = Path("/"), folder: Path | None = None) -> list[str]:
    """What is wrong here; none where there is no NVIDIA GPU. `folder` holds libnvidia-ml.so.1, if the loader does not
    find it."""
    try:
        gpus, error = nvml.health(folder), ""
    except nvml.DriverError as failure:
        gpus, error = [], str(failure)
    return [*_of_system(root, error), *of_gpus(gpus)]


def _of_system(root: Path, error: str) -> Iterator[str]:
    """`error`: what NVML said instead of an answer."""
    module, bus = _read(root / "proc/driver/nvidia/version"), []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _read(device / "vendor").strip() == b"0x10de" and _read(device / "class")[:6].decode() in _GPU_CLASSES:
            bus.append(device)
    for device in bus:
        if _read(device / "config")[:4] == _GONE:
            yield f"GPU {device.name} has fallen off the bus"
    if not module:
        if bus and not (root / "dev/dxg").exists():
            yield f"no NVIDIA kernel module is loaded for {len(bus)} GPU{'s' * (len(bus) > 1)} on the bus"
        return
    if error:
        yield f"the host's driver does not answer: {error}"
    for node in ("nvidiactl", "nvidia-uvm"):
        if not (root / "dev" / node).exists():
            yield f"/dev/{node}: no such device on the host"
    log = _read(root / "dev/kmsg").decode(errors="replace")
    yield from list(dict.fromkeys(_XID.findall(log)))[-3:]


def of_gpus(gpus: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What NVML tells of their health (nvml.health)."""
    for index, gpu in enumerate(gpus):
        if (gpu.get("ecc") or [0])[0]:
            yield f"GPU {index}: {gpu['ecc'][0]} uncorrectable ECC errors since the driver started"
        if any(gpu.get("remapped", [])[2:]):
            yield f"GPU {index}: rows of memory wait for remapping, or could not be remapped"
        if gpu.get("mig", [0])[0] == 1 and not gpu["instances"]:
            yield f"GPU {index}: MIG is on and has no instance"
        mode, others = gpu.get("mode", [0])[0], gpu.get("processes", 0)
        if mode == _PROHIBITED or (mode == _EXCLUSIVE and others):
            yield f"GPU {index}: its compute mode lets no further process in"
        used, total = gpu.get("memory", [0, 0])
        if used * 2 > total:
            yield f"GPU {index}: other processes hold {used >> 20} of {total >> 20} MiB"
        if gpu.get("fabric", _FABRIC_NONE) not in (_FABRIC_NONE, _FABRIC_READY):
            yield f"GPU {index}: the NVLink fabric is not ready (state {gpu['fabric']})"


def _read(path: Path) -> bytes:
    """As much as there is now; none where it may not be read. The kernel's log gives a record a read."""
    found = b""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while len(found) < _LOG_BYTES and (more := os.read(file, 1 << 16)):
                found += more
        finally:
            os.close(file)
    return found
