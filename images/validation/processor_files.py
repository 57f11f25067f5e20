"""What /sys says of an arm64 processor, for programs that run emulated: the machine's own /sys is another processor's.

oneDNN of torch from 2.13 on reads MIDR_EL1 there while torch is imported. Without the file it prints "Can't open
MIDR_EL1 sysfs entry" and dies of SIGSEGV (seen under qemu 7.2, also as `neoverse-n1` and `cortex-a72`). On arm64 the
kernel has the file (Linux, Documentation/arch/arm64/cpu-feature-registers.rst).
"""

from __future__ import annotations

from collections.abc import Mapping

FOLDER = "/sys/devices/system/cpu"
_REGISTERS = {"midr_el1": 0xF0510, "revidr_el1": 0}
"""Of qemu-user's default processor `max` (target/arm/cpu64.c); read with `mrs` under it, they are the same."""


def processor_files(architecture: str, cpus: int) -> Mapping[str, bytes]:
    """Files under `FOLDER` for so many processors; empty for architectures whose programs miss nothing. Pure."""
    if architecture != "arm64":
        return {}
    every = f"0-{cpus - 1}\n" if cpus > 1 else "0\n"
    listed = {name: every.encode() for name in ("online", "possible", "present")}
    registers = {
        f"cpu{cpu}/regs/identification/{name}": f"0x{value:016x}\n".encode()
        for cpu in range(cpus)
        for name, value in _REGISTERS.items()
    }
    return {**listed, "kernel_max": f"{cpus - 1}\n".encode(), "offline": b"\n", **registers}
