"""What doctor speaks of: a machine, what is installed on it, what a person wants, and what is recommended. Pure data.

Memory is in bytes, and a GB is 10^9 of them, as in the rules' source. `7b` means seven billion parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cached_property

GB = 1000**3


class Framework(str, Enum):
    """Whose settings are printed."""

    TRANSFORMERS = "transformers"
    AXOLOTL = "axolotl"
    UNSLOTH = "unsloth"
    COLOSSALAI = "colossalai"

    __str__ = str.__str__


class Strategy(str, Enum):
    """How several GPUs share the work."""

    SINGLE = "single"
    """One process."""
    DDP = "ddp"
    """A whole model on every GPU, other data for each."""
    FSDP = "fsdp"
    """FSDP2: every GPU holds a part of each layer."""
    DEEPSPEED = "deepspeed"
    """ZeRO 3: the same by DeepSpeed."""

    __str__ = str.__str__

    @property
    def shards(self) -> bool:
        """Whether the GPUs hold the model together."""
        return self in (Strategy.FSDP, Strategy.DEEPSPEED)


class Level(IntEnum):
    """How much room there is. Higher never gets a more frugal setting."""

    OVERFULL = 0
    TIGHT = 1
    BALANCED = 2
    AMPLE = 3
    SPACIOUS = 4


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG slice of it, as training sees it."""

    name: str
    capability: tuple[int, int]
    memory: int
    mig: bool = False
    unified: bool = False
    """Its memory is the machine's, shared with the CPU: GB10 (DGX Spark), Jetson. Not that of GPUs beside Grace."""


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Room for what training writes."""

    path: str
    holds: str
    """What goes there: `checkpoints`, `downloads`."""
    free: int
    writable: bool = True
    """For this user."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What there is to train on."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cpus: int = 1
    memory: int = 0
    """Of the machine, or what the container may use of it; 0: not known."""
    shm: int | None = None
    """Size of /dev/shm; None: not known."""
    disks: tuple[Disk, ...] = ()
    mask: tuple[str, ...] = ()
    """CUDA_VISIBLE_DEVICES, which chose these GPUs; empty: it is not set, or nobody asked CUDA for them."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What there is to train with."""

    torch: str = ""
    """Its version; empty: it can't be imported."""
    archs: tuple[str, ...] = ()
    """Machine code (`sm_80`) and PTX (`compute_90`) of this torch; empty: not known."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Version of each package that was really imported."""
    code: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Package -> the targets (`sm_80`) that the image's claims say its kernels are compiled for."""
    examples: str = ""
    """The folder of the image's examples: a program that makes a tiny model, and data; empty: it carries none."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a person wants to train."""

    billions: float = 7.0
    framework: Framework = Framework.TRANSFORMERS
    strategy: Strategy | None = None
    """None: what fits."""
    model: str = ""
    """Name or folder of the model; empty: the tiny one of the examples."""
    data: str = ""
    """A file of JSON lines with `instruction`, `input` and `output`; empty: the examples'."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One recommendation."""

    name: str
    value: str | int | bool
    why: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Everything recommended for one machine and goal."""

    goal: Goal
    level: Level
    strategy: Strategy
    gpus: tuple[Gpu, ...]
    """The GPUs that it is for; empty: the CPU."""
    visible: tuple[str, ...]
    """What CUDA_VISIBLE_DEVICES calls them, where others are left out; empty: they are all."""
    settings: tuple[Setting, ...]
    warnings: tuple[str, ...]

    def __getitem__(self, name: str) -> str | int | bool:
        return self._values[name]

    @cached_property
    def _values(self) -> Mapping[str, str | int | bool]:
        return {setting.name: setting.value for setting in self.settings}
