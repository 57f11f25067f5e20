"""Describes the GPUs of a host: models, memory, links, and how containers get them.

Nothing here asks a driver: `inventory_from` takes what NVML says.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Link(StrEnum):
    """How two GPUs reach each other, best first."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    APART = "apart"
    """Only through the host's memory."""


class GpuMode(StrEnum):
    """How containers get GPUs, as `--gpus` names it."""

    AUTO = "auto"
    """The first of NVIDIA, HOST_DRIVER and NONE that this host has: a wish, never what a container
    got."""
    NONE = "none"
    NVIDIA = "nvidia"
    """By NVIDIA's container runtime."""
    HOST_DRIVER = "host-driver"
    """By the folder of the host's driver and its device files."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU."""

    name: str
    capability: tuple[int, int]
    """Compute capability: (9, 0)."""
    memory: int
    """Bytes."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The GPUs of a host."""

    driver: str
    """Version of the NVIDIA driver."""
    gpus: tuple[Gpu, ...]
    source: str
    """Who says so: `NVML`."""
    links: tuple[tuple[int, int, Link], ...] = ()
    """Each pair of GPUs, by their numbers, and its link; none where the driver does not tell."""
    uuids: tuple[str, ...] = ()
    """What tells each GPU from all others. Never recorded: claims and evidence are published."""

    def __str__(self) -> str:
        """Return a text for people: `2 x NVIDIA H100 80GB HBM3, driver 570.86`."""
        models = []
        for name, count in Counter(gpu.name for gpu in self.gpus).items():
            models.append(f"{count} x {name}" if count > 1 else name)
        return f"{', '.join(models)}, driver {self.driver}"

    def as_json(self) -> dict[str, Any]:
        """Return what claims and evidence hold of it."""
        gpus = [{**asdict(gpu), "capability": list(gpu.capability)} for gpu in self.gpus]
        facts = {**asdict(self), "gpus": gpus}
        del facts["uuids"]
        return facts


def inventory_from(nvml: Mapping[str, Any]) -> Inventory | None:
    """Return a host's GPUs, their links and driver, from NVML's answer; None if it has no GPU.

    `nvml`: what `nvml.read_by_nvml` asked the driver's library NVML for, or the same as a
    validation run recorded it (`host` in its evidence): `driver`, `gpus`, and perhaps `links`.
    Raises LookupError, TypeError or ValueError if it has another form.
    """
    gpus = []
    for gpu in nvml["gpus"]:
        capability = tuple(gpu["capability"])
        gpus.append(Gpu(name=gpu["name"], capability=capability, memory=gpu["memory"]))
    if not gpus:
        return None
    links = []
    # Two GPUs, by their numbers, and how they reach each other.
    for first, second, link in nvml.get("links", ()):
        links.append((first, second, Link(link)))
    return Inventory(driver=nvml["driver"], gpus=tuple(gpus), source="NVML", links=tuple(links))
