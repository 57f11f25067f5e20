"""The arm64 processor that emulated programs see: like those of the boards, where qemu's and the machine's are not.

**Vectors.** qemu's default has SVE vectors of 512 bits. The boards' processors have 128: Neoverse V2 (Grace),
Cortex-X925 and A725 (GB10), Neoverse V3AE (Thor), says Arm's technical reference manual of each. Libraries choose their
kernels by that length. With 512 bits torch 2.14's batched matrix product is wrong by 64 %, and its Inductor writes code
for 256 bits, at which Debian's GCC 12 ends with an internal error. Neither was seen with 128 bits, nor on torch 2.11.

**Identification.** oneDNN of torch from 2.13 on reads MIDR_EL1 from /sys while torch is imported. Without the file it
prints "Can't open MIDR_EL1 sysfs entry" and dies of SIGSEGV. On arm64 the kernel has the file (Linux,
Documentation/arch/arm64/cpu-feature-registers.rst); the machine's own /sys is of another processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FOLDER = "/sys/devices/system/cpu"
_CPU = "max,sve-max-vq=1"
"""qemu's most capable processor, with vectors of one quadword (qemu, docs/system/arm/cpu-features.rst)."""
_REGISTERS = {"midr_el1": 0xF0510, "revidr_el1": 0}
"""Of `max` (qemu, target/arm/cpu64.c); read with `mrs` under it, they are the same."""


@dataclass(frozen=True, kw_only=True)
class EmulatedProcessor:
    """What a container gets for its programs to see it."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """qemu-user's own variables."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Under `FOLDER`."""

    def as_json(self) -> dict[str, str]:
        """For the evidence; empty: qemu's default, and nothing stands in for /sys."""
        return {**self.environment, **({"stands_in": FOLDER} if self.files else {})}


def emulated_processor(architecture: str, cpus: int) -> EmulatedProcessor:
    """So many processors of an architecture in Docker's words. Pure."""
    if architecture != "arm64":
        return EmulatedProcessor()
    every = f"0-{cpus - 1}\n" if cpus > 1 else "0\n"
    listed = {name: every.encode() for name in ("online", "possible", "present")}
    registers = {
        f"cpu{cpu}/regs/identification/{name}": f"0x{value:016x}\n".encode()
        for cpu in range(cpus)
        for name, value in _REGISTERS.items()
    }
    files = {**listed, "kernel_max": f"{cpus - 1}\n".encode(), "offline": b"\n", **registers}
    return EmulatedProcessor(environment={"QEMU_CPU": _CPU}, files=files)
