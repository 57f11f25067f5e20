"""Read what a machine says of its NVIDIA GPUs: driver files, PCI bus, the kernel's log, NVML.

It is read on the host, and in a container as far as the container sees it. Nothing is judged here:
validate/host_faults.py does that.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from validate.environment import nvml

_NVIDIA_VENDOR = b"0x10de"
_DISPLAY_CLASSES = (b"0x0300", b"0x0302")
"""VGA and 3D controllers. NVIDIA's audio and USB devices have other classes."""
_NO_ANSWER = b"\xff" * 4
"""What the PCI bus reads where no device answers."""
_XID = re.compile(r"NVRM: Xid \(\S+\): (\d+), .*")
_DRIVER_FAULT = re.compile(r"NVRM: (?:GPU \S+: RmInitAdapter failed|API mismatch).*")
_DEVICE_FILES = ("nvidiactl", "nvidia-uvm", "nvidia-caps")


class PciGpu(TypedDict):
    """A GPU on the PCI bus."""

    address: str
    """`0000:3b:00.0`."""
    answers: bool
    """False: the bus lists it, but it does not respond."""


class LogEntry(TypedDict):
    """A line of the kernel's log in which NVIDIA's driver reports an error."""

    text: str
    xid: int | None
    """NVIDIA's number of the error; None: the driver itself did not start."""


class HostFacts(TypedDict):
    """What was read of a machine."""

    module_loaded: bool
    """Whether the driver's kernel module is loaded."""
    under_wsl: bool
    windows_driver: bool
    """Whether WSL has brought in the libraries of Windows' driver."""
    missing_files: list[str]
    """The driver's device files that do not exist."""
    pci: list[PciGpu]
    log: list[LogEntry]
    nvml_error: str
    """The error that NVML gave; empty: it answered."""
    gpus: list[nvml.GpuHealth]


def read(root: Path = Path("/"), folder: Path | None = None) -> HostFacts:
    """Read the facts of this machine.

    `root`: the machine's root folder; tests have one of their own. `folder` holds
    libnvidia-ml.so.1, if the loader does not find it.
    """
    gpus: list[nvml.GpuHealth] = []
    nvml_error = ""
    try:
        gpus = nvml.read_health(folder)
    except nvml.DriverError as error:
        nvml_error = str(error)

    missing_files = []
    for name in _DEVICE_FILES:
        if not (root / "dev" / name).exists():
            missing_files.append(f"/dev/{name}")

    log = _read_file(root / "dev/kmsg").decode(errors="replace")
    driver_version = _read_file(root / "proc/driver/nvidia/version")
    return {
        "module_loaded": bool(driver_version),
        "under_wsl": (root / "dev/dxg").exists(),
        "windows_driver": (root / "usr/lib/wsl/lib/libcuda.so.1").exists(),
        "missing_files": missing_files,
        "pci": list(_pci_gpus(root / "sys/bus/pci/devices")),
        "log": list(_driver_errors(log)),
        "nvml_error": nvml_error,
        "gpus": gpus,
    }


def _pci_gpus(devices: Path) -> Iterator[PciGpu]:
    """Yield NVIDIA's GPUs among the PCI devices of sysfs (/sys/bus/pci/devices), by address."""
    for device in sorted(devices.glob("*")):
        is_display = _read_file(device / "class")[:6] in _DISPLAY_CLASSES
        is_of_nvidia = _read_file(device / "vendor").strip() == _NVIDIA_VENDOR
        if is_display and is_of_nvidia:
            first_bytes = _read_file(device / "config")[:4]
            yield {"address": device.name, "answers": first_bytes != _NO_ANSWER}


def _driver_errors(log: str) -> Iterator[LogEntry]:
    """Yield the errors of NVIDIA's driver in the kernel's log, each text once, oldest first."""
    seen = set()
    for line in log.splitlines():
        xid = _XID.search(line)
        error = xid or _DRIVER_FAULT.search(line)
        if error and error[0] not in seen:
            seen.add(error[0])
            yield {"text": error[0], "xid": int(xid[1]) if xid else None}


def _read_file(path: Path) -> bytes:
    """Return what a file holds now, without waiting for more; empty if it can't be opened.

    If reading fails, what was read before is returned.
    """
    # At the end of the kernel's log, a blocking read would wait for the next record.
    content = b""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while more := os.read(file, 1 << 16):
                content += more
        finally:
            os.close(file)
    return content
