"""From hardware to training settings. Rules alone: no I/O, no torch. Every setting says why, and whose rule it is.

Memory is in bytes, and a GB is 10^9 of them, as in the rules' source. `7b` means seven billion parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from validate.compute_capability import target_runs_on
from validate.environment import allocator

GB = 1000**3

_UNSLOTH = "seed:unsloth-setup"
_AXOLOTL = "seed:axolotl-cuda-gpu"
_MULTI = "seed:axolotl-multi-gpu"
_TRANSFORMERS = "seed:transformers-cuda"
_OWN = "our estimate"

_GB_PER_BILLION_4BIT = 0.5
_GB_PER_BILLION_16BIT = 2.0
_GB_PER_BILLION_32BIT = 4.0
_OVERHEAD = 2.5
"""What training takes, as a multiple of the weights (unsloth-setup: 2 to 3)."""
_LEAST_OVERHEAD = 1.2
"""Below this multiple of the 4-bit weights, plus CUDA's context, even a batch of one has no room."""
_CONTEXT_GB = 1.0
_UNCHECKPOINTED_OVERHEAD = 5.0
"""Twice _OVERHEAD: keeping every activation of 4 x 2048 tokens takes 34 bytes a token, layer and hidden unit
(Korthikanti et al. 2022, section 4.1, attention that keeps no scores): 37 GB for a 7b model beside 14 GB of weights."""
_EFFECTIVE_BATCH = 8
"""1 x 8 and 2 x 4 in unsloth-setup: the same for every GPU, so that a learning rate fits all."""
_ROOMY_SHM = GB


class Framework(str, Enum):
    """Whose settings are printed."""

    TRANSFORMERS = "transformers"
    AXOLOTL = "axolotl"
    UNSLOTH = "unsloth"

    __str__ = str.__str__


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


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a person wants to train."""

    billions: float = 7.0
    framework: Framework = Framework.TRANSFORMERS


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
    gpus: tuple[Gpu, ...]
    """The GPUs that it is for; empty: the CPU."""
    settings: tuple[Setting, ...]
    warnings: tuple[str, ...]

    def __getitem__(self, name: str) -> str | int | bool:
        return next(setting.value for setting in self.settings if setting.name == name)


def advise(hardware: Hardware, stack: Stack, goal: Goal) -> Advice:
    """Recommend settings for LoRA or QLoRA fine-tuning with sequences of about 2048 tokens."""
    gpus = tuple(gpu for gpu in hardware.gpus if runs_on(stack.archs, gpu.capability))
    level = _level_of_gpu(min(gpu.memory for gpu in gpus), goal) if gpus else _level_of_cpu(hardware.memory, goal)
    settings = tuple(_for_gpu(gpus, level, stack, goal) if gpus else _for_cpu(level, stack, goal))
    return Advice(
        goal=goal,
        level=level,
        gpus=gpus,
        settings=settings,
        warnings=tuple(_warnings(hardware, gpus, level, stack, goal)),
    )


def runs_on(archs: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether code of these targets (`sm_80`, `compute_90`) runs on a GPU. No targets: not known, taken for yes."""
    return not archs or any(target_runs_on(arch, capability) for arch in archs)


def _level_of_gpu(memory: int, goal: Goal) -> Level:
    room, billions = memory / GB, goal.billions
    if room < _GB_PER_BILLION_4BIT * billions * _LEAST_OVERHEAD + _CONTEXT_GB:
        return Level.OVERFULL
    if room < _GB_PER_BILLION_4BIT * billions * _OVERHEAD:
        return Level.TIGHT
    if room < _GB_PER_BILLION_16BIT * billions * _OVERHEAD:
        return Level.BALANCED
    return Level.AMPLE if room < _GB_PER_BILLION_16BIT * billions * _UNCHECKPOINTED_OVERHEAD else Level.SPACIOUS


def _level_of_cpu(memory: int, goal: Goal) -> Level:
    if not memory:
        return Level.TIGHT
    room = memory / GB
    if room < _GB_PER_BILLION_4BIT * goal.billions * _LEAST_OVERHEAD:
        return Level.OVERFULL
    return Level.TIGHT if room < _GB_PER_BILLION_32BIT * goal.billions * _LEAST_OVERHEAD else Level.BALANCED


def _for_gpu(gpus: tuple[Gpu, ...], level: Level, stack: Stack, goal: Goal) -> Iterator[Setting]:
    capability = min(gpu.capability for gpu in gpus)
    shown = f"compute capability {capability[0]}.{capability[1]}"
    yield Setting(name="device", value="cuda", why=f"{len(gpus)} x {gpus[0].name}", source=_UNSLOTH)
    modern = capability >= (8, 0)
    yield Setting(
        name="dtype",
        value="bfloat16" if modern else "float16",
        why=f"{shown}: bfloat16 from 8.0 (Ampere) on, float16 below",
        source=_UNSLOTH,
    )
    yield Setting(name="tf32", value=modern, why=f"{shown}: TF32 products from 8.0 on", source=_UNSLOTH)
    yield _attention(tuple(gpu.capability for gpu in gpus), stack, goal)
    yield _fp8(capability, shown)
    yield from _memory(level, stack, goal, gpus)
    yield _allocator(stack)


def _attention(capabilities: tuple[tuple[int, int], ...], stack: Stack, goal: Goal) -> Setting:
    """flash-attn 2 where its wheel has code for the GPU, which differs from wheel to wheel: the image's claims say it.

    unsloth-setup says 7.5 with flash-attn 1 below 8.0: flash-attn 2's own README and sources say 8.0, and nothing ships
    flash-attn 1 any more; xformers and SDPA take its place."""
    capability, here = min(capabilities), "flash-attn" in stack.packages
    targets = stack.code.get("flash-attn", ())
    if here and all(any(target_runs_on(target, gpu) for target in targets) for gpu in capabilities):
        why = f"flash-attn {stack.packages['flash-attn']} is here, with code for {_capabilities(targets)}"
        return Setting(name="attention", value="flash_attention_2", why=why, source="the image's claim S5; " + _UNSLOTH)
    if (7, 5) <= capability < (10, 0) and "xformers" in stack.packages and goal.framework is not Framework.TRANSFORMERS:
        why = f"no flash-attn 2 for this GPU and image; xformers {stack.packages['xformers']} saves as much memory"
        return Setting(name="attention", value="xformers", why=why, source=_AXOLOTL)
    if capability < (8, 0):
        why = "flash-attn 2 starts at 8.0; torch's SDPA has a memory-efficient kernel for older GPUs"
    elif not here:
        why = "flash-attn is not in this image; torch's SDPA brings a flash kernel of its own"
    elif targets:
        why = f"this image's flash-attn has code for {_capabilities(targets)} alone; torch's SDPA has it for this GPU"
    else:
        why = "the image has no claim for which GPUs its flash-attn has code; torch's SDPA brings a flash kernel"
    return Setting(name="attention", value="sdpa", why=why, source=_UNSLOTH)


def _capabilities(targets: tuple[str, ...]) -> str:
    """`sm_80` as people know it: 8.0."""
    return ", ".join(re.sub(r"\D*(\d+)(\d)", r"\1.\2", target) for target in targets)


def _fp8(capability: tuple[int, int], shown: str) -> Setting:
    """unsloth-setup and axolotl train in FP8 from 9.0 on, though 8.9's tensor cores have it too."""
    if capability >= (9, 0):
        why = f"{shown}: FP8 from Hopper on; it pays in full fine-tuning, with LoRA and 4-bit weights leave it off"
        return Setting(name="fp8", value="available", why=why, source=_AXOLOTL)
    if capability >= (8, 9):
        why = f"{shown}: FP8 products run (torch._scaled_mm), the frameworks' FP8 training wants 9.0"
        return Setting(name="fp8", value="inference only", why=why, source=f"{_AXOLOTL}; torch._scaled_mm")
    return Setting(name="fp8", value="no", why=f"{shown}: FP8 training needs 9.0 (Hopper)", source=_AXOLOTL)


def _memory(level: Level, stack: Stack, goal: Goal, gpus: tuple[Gpu, ...]) -> Iterator[Setting]:
    """What the room on the smallest GPU decides."""
    room, size = min(gpu.memory for gpu in gpus) / GB, f"{goal.billions:g}b"
    quantized = level < Level.AMPLE and "bitsandbytes" in stack.packages
    yield Setting(
        name="load_in_4bit", value=quantized, why=_why_quantized(level, quantized, room, goal), source=_UNSLOTH
    )
    frugal = level <= Level.TIGHT and "bitsandbytes" in stack.packages
    yield Setting(
        name="optimizer",
        value="adamw_8bit" if frugal else "adamw_torch_fused",
        why=f"{room:.0f} GB is {'tight' if level <= Level.TIGHT else 'enough'} for {size}"
        + ("" if frugal or level > Level.TIGHT else "; adamw_8bit would need bitsandbytes"),
        source=_UNSLOTH,
    )
    recompute = level < Level.SPACIOUS
    unsloth = goal.framework is Framework.UNSLOTH
    yield Setting(
        name="gradient_checkpointing",
        value="unsloth" if recompute and unsloth else recompute,
        why="activations are computed again instead of kept" if recompute else f"{room:.0f} GB keeps all activations",
        source=_UNSLOTH if recompute else _OWN,
    )
    batch = {Level.OVERFULL: 1, Level.TIGHT: 1, Level.BALANCED: 2}.get(level, 4)
    yield Setting(name="batch_size", value=batch, why=f"{room:.0f} GB a GPU, {size}, 2048 tokens", source=_UNSLOTH)
    yield _accumulation(batch, len(gpus))


def _why_quantized(level: Level, quantized: bool, room: float, goal: Goal) -> str:
    needed = _GB_PER_BILLION_16BIT * goal.billions * _OVERHEAD
    if level >= Level.AMPLE:
        return f"{room:.0f} GB holds a 16-bit {goal.billions:g}b model and its training ({needed:.0f} GB)"
    short = f"in 16 bit, {goal.billions:g}b and its training want {needed:.0f} GB, there are {room:.0f}"
    return short if quantized else f"{short}; but bitsandbytes is not in this image"


def _accumulation(batch: int, workers: int) -> Setting:
    steps = max(1, _EFFECTIVE_BATCH // (batch * workers))
    shared = f" x {workers} GPUs" if workers > 1 else ""
    why = f"{steps} x {batch}{shared} = {steps * batch * workers} sequences an optimizer step"
    return Setting(name="gradient_accumulation", value=steps, why=why, source=_UNSLOTH)


def _allocator(stack: Stack) -> Setting:
    release = _release(stack.torch)
    if release and release < (2, 2):
        return Setting(name="allocator", value="", why="needs torch 2.2", source=_AXOLOTL)
    variable = allocator.variable(release) if release else allocator.variable((2, 9))
    why = "less fragmentation; the variable's name changed in torch 2.9"
    return Setting(name="allocator", value=f"{variable}={allocator.SETTING}", why=why, source=_AXOLOTL)


def _for_cpu(level: Level, stack: Stack, goal: Goal) -> Iterator[Setting]:
    yield Setting(name="device", value="cpu", why="no GPU that this torch can use", source=_UNSLOTH)
    yield Setting(name="dtype", value="float32", why="what CPUs compute best", source=_UNSLOTH)
    yield Setting(name="tf32", value=False, why="a GPU's number format", source=_UNSLOTH)
    yield Setting(name="attention", value="sdpa", why="flash-attn and xformers run on GPUs alone", source=_UNSLOTH)
    yield Setting(name="fp8", value="no", why="FP8 training needs a Hopper GPU", source=_AXOLOTL)
    quantized = level < Level.BALANCED and "bitsandbytes" in stack.packages
    why = "memory is short, and bitsandbytes computes NF4 on CPUs too" if quantized else "it saves memory, not time"
    yield Setting(name="load_in_4bit", value=quantized, why=why, source="bitsandbytes' documentation")
    yield Setting(name="optimizer", value="adamw_torch", why="the others are GPU code", source=_TRANSFORMERS)
    yield Setting(name="gradient_checkpointing", value=True, why="activations are computed again", source=_UNSLOTH)
    yield Setting(name="batch_size", value=1, why="a CPU is busy with one sequence", source=_OWN)
    yield _accumulation(1, 1)
    yield Setting(name="allocator", value="", why="a setting of CUDA's allocator", source=_AXOLOTL)


def _warnings(hardware: Hardware, gpus: tuple[Gpu, ...], level: Level, stack: Stack, goal: Goal) -> Iterator[str]:
    for gpu in hardware.gpus:
        if gpu not in gpus:
            arch = f"sm_{gpu.capability[0]}{gpu.capability[1]}"
            yield f"torch {stack.torch} has no code for {gpu.name} ({arch}): it is left out; take an image with {arch}"
    if not gpus:
        yield "there is no GPU to train on: these settings are for the CPU, fit for trying things out alone"
    if level is Level.OVERFULL:
        yield (
            f"a {goal.billions:g}b model does not fit, even in 4-bit: take a smaller one, "
            "or shard it over several GPUs (FSDP, DeepSpeed ZeRO 3)"
        )
    if len({(gpu.name, gpu.capability, gpu.memory) for gpu in gpus}) > 1:
        yield (
            "the GPUs differ: settings are for the weakest, the slowest sets the pace, and NCCL may need "
            f"NCCL_P2P_DISABLE=1 ({_MULTI})"
        )
    if any(gpu.mig for gpu in gpus):
        yield "this is a MIG slice: a process sees one slice at a time, and NCCL does not join them"
    if len(gpus) > 1:
        yield f"start one process a GPU: `accelerate launch --num_processes {len(gpus)} ...` or torchrun ({_MULTI})"
    if gpus and hardware.shm is not None and hardware.shm < _ROOMY_SHM:
        yield (
            f"/dev/shm has {hardware.shm / GB:.2f} GB: start the container with --ipc=host or --shm-size=8g, "
            "data loader workers and NCCL need it"
        )
    if goal.framework is Framework.UNSLOTH and not gpus:
        yield "unsloth does not start without a GPU: the snippet is transformers'"


def _release(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None
