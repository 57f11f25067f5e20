"""The GPUs of a host as plain data: models, memory, links, how containers get them. Pure: what NVML says goes in."""

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
    """The first of NVIDIA, HOST_DRIVER and NONE that this host has: a wish, never what a container got."""
    NONE = "none"
    NVIDIA = "nvidia"
    """By NVIDIA's container runtime."""
    HOST_DRIVER = "host-driver"
    """By the folder of the host's driver and its device files."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU. Memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The GPUs of a host, and who says so."""

    driver: str
    gpus: tuple[Gpu, ...]
    source: str
    links: tuple[tuple[int, int, Link], ...] = ()
    """Each pair of GPUs, by number; none where the driver does not tell."""

    def __str__(self) -> str:
        """`2 x NVIDIA H100 80GB HBM3, driver 570.86` for people."""
        counts = Counter(gpu.name for gpu in self.gpus)
        gpus = ", ".join(
            f"{count} x {name}" if count > 1 else name for name, count in counts.items()
        )
        return f"{gpus}, driver {self.driver}"

    def as_json(self) -> dict[str, Any]:
        """For claims and evidence."""
        return {
            **asdict(self),
            "gpus": [{**asdict(one), "capability": list(one.capability)} for one in self.gpus],
        }


def of_nvml(found: Mapping[str, Any]) -> Inventory | None:
    """What `nvml.read_by_nvml` read; None where it counts no GPU."""
    gpus = tuple(
        Gpu(name=one["name"], capability=tuple(one["capability"]), memory=one["memory"])
        for one in found["gpus"]
    )
    links = tuple((one, other, Link(link)) for one, other, link in found.get("links", ()))
    return (
        Inventory(driver=found["driver"], gpus=gpus, source="NVML", links=links) if gpus else None
    )
