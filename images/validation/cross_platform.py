"""Validation runs of images of another processor: files are read by a Python of this machine, programs run emulated.

What ran emulated is listed in the evidence (`host.emulated`), and verdicts and pages say it: an emulator is not the
processor that it stands for. Emulated programs see an arm64 processor like those of the boards (docs/arm64.md): vectors
of 128 bits (Arm's technical reference manuals of Neoverse V2 and V3AE, Cortex-X925): libraries choose kernels by
that; and the registers of identification in /sys, without which oneDNN of torch from 2.13 on dies of SIGSEGV (Linux,
Documentation/arch/arm64/cpu-feature-registers.rst): the machine's own /sys is of another processor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from images.engine import Engine
from images.engine.archive import Files
from images.engine.runtime import ImageInfo
from images.host import emulation
from images.validation import own_python
from images.validation.containers import INSIDE, ContainerPlan
from validate import checks
from validate.claims import Claim, Tier

OF_ITS_PYTHON = ("cpu.bytecode",)
"""Probes that compare the image's files with what the Python that runs them would compile: one of the same release.
Where that of this machine is another, the image's own runs them, emulated."""
CPU_FOLDER = "/sys/devices/system/cpu"
QEMU = {"QEMU_CPU": "max,sve-max-vq=1"}
"""qemu's most capable processor, with vectors of one quadword (qemu, docs/system/arm/cpu-features.rst)."""
_REGISTERS = {"midr_el1": 0xF0510, "revidr_el1": 0}
"""Of `max` (qemu, target/arm/cpu64.c); read with `mrs` under it, they are the same."""
_EMULATED_SECONDS = 3000
"""For an emulated probe: qemu takes ten to twenty times as long (docs/arm64.md)."""


@dataclass(frozen=True, kw_only=True)
class NativePython:
    """A Python of this machine that reads an image's files."""

    files: Files
    """Below INSIDE."""
    architecture: str
    emulator: str
    of_its_release: bool
    """Whether it is of the same release as the image's own."""

    def runs(self, probe: str) -> bool:
        """Whether it runs a probe in place of the image's own."""
        if probe in OF_ITS_PYTHON:
            return self.of_its_release
        return probe.startswith(f"{Tier.STATIC}.")

    def emulated(self, claims: Sequence[Claim]) -> dict[str, Any]:
        """What the evidence says of a run of these claims."""
        probes = {claim.probe for claim in claims if not claim.unproven}
        return {
            "platform": f"linux/{self.architecture}",
            "by": self.emulator,
            "probes": sorted(one for one in probes if not self.runs(one) or checks.settings(one).starts_programs),
            "processor": {**QEMU, "stands_in": CPU_FOLDER},
        }


def native_python(engine: Engine, image: ImageInfo) -> NativePython:
    """A Python of this machine, packed. Raises UserError: an engine of another processor than this machine's."""
    own_python.require_native(engine, image)
    own = own_python.of_release(own_python.release_of(engine, image))
    return NativePython(
        files=own_python.files(INSIDE, own),
        architecture=image.architecture,
        emulator=f"qemu-user {emulation.version()}".strip(),
        of_its_release=own is not None,
    )


def split(plans: Sequence[ContainerPlan], native: NativePython, cpus: int) -> Iterator[ContainerPlan]:
    """For each container one of what is read natively, and one of what runs emulated, on so many processors."""
    every = f"0-{cpus - 1}\n" if cpus > 1 else "0\n"
    processor = {name: every.encode() for name in ("online", "possible", "present")}
    processor |= {"kernel_max": f"{cpus - 1}\n".encode(), "offline": b"\n"}
    for cpu in range(cpus):
        for name, value in _REGISTERS.items():
            processor[f"cpu{cpu}/regs/identification/{name}"] = f"0x{value:016x}\n".encode()
    for plan in plans:
        read = plan.claims.only([claim.probe for claim in plan.claims.claims if native.runs(claim.probe)])
        rest = plan.claims.less([claim.probe for claim in read.claims])
        if read.claims:
            scratch = plan.environment.get("TMPDIR") or plan.writable[0]
            yield replace(
                plan,
                claims=read,
                python=own_python.command(INSIDE),
                environment={**plan.environment, **own_python.environment(INSIDE), "TMPDIR": scratch},
                files={INSIDE: {**native.files, **plan.files.get(INSIDE, {})}},
            )
        if rest.claims:
            yield replace(
                plan,
                claims=rest,
                arguments=(*plan.arguments, "--emulated", "--timeout", str(_EMULATED_SECONDS)),
                environment={**plan.environment, **QEMU},
                files={**plan.files, CPU_FOLDER: processor},
            )
