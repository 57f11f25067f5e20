"""The machine that an image is chosen for: its GPUs and its driver, as a person or the driver describes them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from images.chooser import models
from images.config.names import Arch
from images.config.platforms import Platform
from images.errors import Problem, UserError
from images.hardware.inventory import Inventory
from validate.compute_capability import ON_ARM_ALONE


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the image shall run. `driver` is empty where it is not known."""

    gpus: tuple[str, ...]
    archs: tuple[Arch, ...]
    """Of all its GPUs, each once, ascending."""
    driver: str = ""
    arm: bool = False

    def __str__(self) -> str:
        driver = f"driver {self.driver}" if self.driver else "driver not known"
        return f"{', '.join(self.gpus)} ({', '.join(map(str, self.archs))}), {driver}"


def detected(found: Inventory, processor: Platform | None) -> Machine:
    """The machine as its driver and its kernel describe it: no table is asked.

    A GPU does not tell its processor: sm_90 is an H100 beside x86-64, and a GH200.
    """
    archs = sorted({Arch(*gpu.capability) for gpu in found.gpus})
    gpus = tuple(dict.fromkeys(gpu.name for gpu in found.gpus))
    arm = processor is Platform.ARM64
    return Machine(gpus=gpus, archs=tuple(archs), driver=parse_driver(found.driver) if found.driver else "", arm=arm)


def parse(gpu: str, arch: str, driver_text: str) -> Machine:
    """The machine as a person describes it. Raises UserError: unknown model, arch or driver."""
    number = parse_driver(driver_text) if driver_text else ""
    if arch:
        try:
            found = Arch.parse(arch)
        except ValueError as error:
            raise UserError(
                Problem(where=f"--arch {arch}", cause=str(error), then="write sm_89, sm89 or 8.9")
            ) from None
        name, arm = gpu or str(found), found.pair in ON_ARM_ALONE
    else:
        name, row = models.find(gpu)
        found, arm = Arch.parse(row.capability), row.arm
    return Machine(gpus=(name,), archs=(found,), driver=number, arm=arm)


def parse_driver(text: str) -> str:
    """Read a driver's version, `550.90` or `550.90.07`. Raises UserError."""
    try:
        Version(text)
    except InvalidVersion:
        cause, then = "is no version of a driver", "write it as nvidia-smi does: 550.90.07"
        raise UserError(Problem(where=f"--driver {text}", cause=cause, then=then)) from None
    return text
