"""What a machine says of its NVIDIA GPUs: the driver's module and files, the GPUs' health, the log.

Read outside of containers; inside, as far as it shows there. Nothing is judged here:
validate/host_faults.py does.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

_NVIDIA, _DISPLAY_CLASSES = b"0x10de", (b"0x0300", b"0x0302")
_NO_ANSWER = b"\xff" * 4
"""What the PCI bus reads where no device answers."""
_XID = re.compile(r"NVRM: Xid \(\S+\): (\d+), .*")
_DRIVER_FAULT = re.compile(r"NVRM: (?:GPU \S+: RmInitAdapter failed|API mismatch).*")


class PciGpu(TypedDict):
    """A GPU on the PCI bus."""

    address: str
    answers: bool


class LogEntry(TypedDict):
    """A line of the kernel's log in which NVIDIA's driver reports an error."""

    text: str
    xid: int | None
    """NVIDIA's number of the error; None: the driver itself did not start."""


class HostFacts(TypedDict):
    """What was read of a machine."""

    module_loaded: bool
    under_wsl: bool
    windows_driver: bool
    """WSL has brought in the libraries of Windows' driver."""
    missing_files: list[str]
    """Those of the driver's device files that are not there."""
    pci: list[PciGpu]
    log: list[LogEntry]
    nvml_error: str
    """What NVML said instead of an answer; empty: it answered."""
    gpus: list[dict[str, Any]]
    """The health of each, as nvml.health has it."""


def read(root: Path = Path("/"), folder: Path | None = None) -> HostFacts:
    """Read the facts of this machine.

    `folder` holds libnvidia-ml.so.1, if the loader does not find it.
    """
    from validate.environment import nvml  # most machines that build have no GPU

    gpus, nvml_error = [], ""
    try:
        gpus = nvml.health(folder)
    except nvml.DriverError as error:
        nvml_error = str(error)

    files = ("nvidiactl", "nvidia-uvm", "nvidia-caps")
    return {
        "module_loaded": bool(_content(root / "proc/driver/nvidia/version")),
        "under_wsl": (root / "dev/dxg").exists(),
        "windows_driver": (root / "usr/lib/wsl/lib/libcuda.so.1").exists(),
        "missing_files": [f"/dev/{name}" for name in files if not (root / "dev" / name).exists()],
        "pci": list(_pci_gpus(root / "sys/bus/pci/devices")),
        "log": list(_driver_errors(_content(root / "dev/kmsg").decode(errors="replace"))),
        "nvml_error": nvml_error,
        "gpus": gpus,
    }


def _pci_gpus(devices: Path) -> Iterator[PciGpu]:
    """NVIDIA's GPUs in sysfs, by address."""
    for device in sorted(devices.glob("*")):
        is_display = _content(device / "class")[:6] in _DISPLAY_CLASSES
        if is_display and _content(device / "vendor").strip() == _NVIDIA:
            yield {"address": device.name, "answers": _content(device / "config")[:4] != _NO_ANSWER}


def _driver_errors(log: str) -> Iterator[LogEntry]:
    """Errors of the driver in the kernel's log, each text once, oldest first."""
    seen = set()
    for line in log.splitlines():
        numbered, start = _XID.search(line), _DRIVER_FAULT.search(line)
        found = numbered or start
        if found and found[0] not in seen:
            seen.add(found[0])
            yield {"text": found[0], "xid": int(numbered[1]) if numbered else None}


def _content(path: Path) -> bytes:
    """As much of a file as there is now; nothing where it may not be read.

    The kernel's log gives one record a read, and would wait for more at its end.
    """
    content = b""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while more := os.read(file, 1 << 16):
                content += more
        finally:
            os.close(file)
    return content
