"""From hardware to training settings. Rules alone: no I/O, no torch. Every setting says why, and whose rule it is.

Memory is in bytes, and a GB is 10^9 of them, as in the rules' source. `7b` means seven billion parameters.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from validate.compute_capability import target_runs_on
from validate.environment import ALLOCATOR, allocator_variable

GB = 1000**3

FRAMEWORKS = ("transformers", "axolotl", "unsloth", "colossalai")
"""Whose settings are printed."""
STRATEGIES = ("single", "ddp", "fsdp", "deepspeed")
"""How several GPUs share the work: one process; a whole model on every GPU, other data for each; FSDP2, where every GPU
holds a part of each layer; ZeRO 3, the same by DeepSpeed."""
SHARDING = ("fsdp", "deepspeed")
"""Where the GPUs hold the model together."""


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
    assembled: bool = True
    """The ptxas that Triton takes makes code for it, or nobody could ask one."""


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
    framework: str = "transformers"
    strategy: str | None = None
    """None: what fits."""
    model: str = ""
    """Name or folder of the model; empty: the tiny one of the examples."""
    data: str = ""
    """A file of JSON lines with `instruction`, `input` and `output`; empty: the examples'."""


@dataclass(frozen=True)
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
    strategy: str
    gpus: tuple[Gpu, ...]
    """The GPUs that it is for; empty: the CPU."""
    visible: tuple[str, ...]
    """What CUDA_VISIBLE_DEVICES calls them, where others are left out; empty: they are all."""
    settings: tuple[Setting, ...]
    warnings: tuple[str, ...]

    def __getitem__(self, name: str) -> str | int | bool:
        return next(setting.value for setting in self.settings if setting.name == name)


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
_KEPT_GB, _RECOMPUTED_GB = 4.4, 0.3
"""Activations of 2048 tokens of a 1b model, kept or computed again: about 60 bytes a token, layer and hidden unit with
LoRA on all layers and a gated MLP (34 of them in Korthikanti et al. 2022, section 4.1, without either), or 2 and those
of one layer. Layers times hidden units grow as the parameters do to the power of 2/3 (24 x 896 in Qwen2.5-0.5B,
32 x 4096 in Llama-2-7B, 80 x 8192 in Llama-2-70B)."""
_LOGITS_GB = 4.4
"""Of 2048 tokens: 14 bytes (16 bit, float32, its logarithm, its gradient) for each of 152,064 words (Qwen2.5), whatever
the size of the model. Unsloth's loss never has them as a whole."""
_EFFECTIVE_BATCH = 8
"""1 x 8 and 2 x 4 in unsloth-setup: the same for every GPU, so that a learning rate fits all."""
_KEPT_FOR_THE_MACHINE = 8 * GB
"""Of memory that the GPU shares with the CPU: for the system, data loader workers and the page cache in use."""
_SPARK = "build.nvidia.com/spark"
_ROOMY_SHM = GB
_WITH_XFORMERS = ("unsloth",)
"""Not axolotl: its patch reads LlamaAttention.num_heads, which transformers 4.48 dropped (seen with axolotl 0.13.2)."""
_DISK, _DISK_OF_SEVERAL = 50 * GB, 100 * GB
"""axolotl-cuda-gpu, and axolotl-multi-gpu: weights, checkpoints and data; with several GPUs shards of them as well."""


def advise(hardware: Hardware, stack: Stack, goal: Goal) -> Advice:
    """Recommend settings for LoRA or QLoRA fine-tuning with sequences of about 2048 tokens."""
    numbers = [number for number, gpu in enumerate(hardware.gpus) if runs_on(stack.archs, gpu.capability)]
    gpus = tuple(_for_training(hardware.gpus[number], hardware) for number in numbers)
    strategy = _strategy(gpus, stack, goal)
    if strategy == "single" and gpus:
        best = max(range(len(gpus)), key=lambda number: (gpus[number].memory, gpus[number].capability))
        gpus, numbers = (gpus[best],), [numbers[best]]
    level = _level_of_gpus(gpus, strategy, goal) if gpus else _level_of_cpu(hardware.memory, goal)
    settings = tuple(_for_gpu(gpus, level, strategy, stack, goal) if gpus else _for_cpu(level, stack, goal))
    # By their places in the variable where that is set already.
    names = [*hardware.mask, *map(str, range(len(hardware.mask), len(hardware.gpus)))]
    advice = Advice(
        goal=goal,
        level=level,
        strategy=strategy,
        gpus=gpus,
        visible=tuple(names[number] for number in numbers) if len(numbers) < len(hardware.gpus) else (),
        settings=settings,
        warnings=(),
    )
    return replace(advice, warnings=tuple(_warnings(hardware, stack, advice)))


def _for_training(gpu: Gpu, hardware: Hardware) -> Gpu:
    """With the memory that training may take: of one that is shared, what the container may use beside the system."""
    if not gpu.unified:
        return gpu
    shared = min(gpu.memory or hardware.memory, hardware.memory or gpu.memory)
    return replace(gpu, memory=max(0, shared - _KEPT_FOR_THE_MACHINE))


def _strategy(gpus: tuple[Gpu, ...], stack: Stack, goal: Goal) -> str:
    """What was asked for, if it can be had; else a whole model on each GPU where it fits, else one over all."""
    if len(gpus) < 2 or goal.framework == "unsloth" or any(gpu.mig for gpu in gpus):
        return "single"
    if goal.strategy and not _why_not(goal.strategy, stack, goal.framework, len(gpus)):
        return goal.strategy
    fits = _level_of_gpus(gpus, "ddp", goal) > Level.OVERFULL
    return "ddp" if fits or goal.framework == "colossalai" else "fsdp"


def _why_not(strategy: str, stack: Stack, framework: str, gpus: int) -> str:
    """Why a framework of this image does not offer it; empty: it does."""
    if strategy == "deepspeed" and "deepspeed" not in stack.packages:
        return "deepspeed is not in this image (the axolotl-multigpu profile has it)"
    if gpus < 2:
        return "it takes two GPUs or more"
    # ColossalAI's own plugins do that, and only DDP's and ZeRO's are tried here.
    return f"{framework} has no snippet for it" if framework == "colossalai" and strategy in SHARDING else ""


def _room(gpus: tuple[Gpu, ...], strategy: str) -> tuple[float, int]:
    """GB of the smallest GPU, and how many hold one model together."""
    return min(gpu.memory for gpu in gpus) / GB, len(gpus) if strategy in SHARDING else 1


def runs_on(archs: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether code of these targets (`sm_80`, `compute_90`) runs on a GPU. No targets: not known, taken for yes."""
    return not archs or any(target_runs_on(arch, capability) for arch in archs)


def _level_of_gpus(gpus: tuple[Gpu, ...], strategy: str, goal: Goal) -> Level:
    """By the weights, which GPUs may share, and by the activations of a GPU's own sequences, which they may not."""
    (each, holders), billions = _room(gpus, strategy), goal.billions
    room, weights = each * holders, _GB_PER_BILLION_16BIT * billions / holders
    if room < _GB_PER_BILLION_4BIT * billions * _LEAST_OVERHEAD + _CONTEXT_GB:
        return Level.OVERFULL
    if room < _GB_PER_BILLION_4BIT * billions * _OVERHEAD:
        return Level.TIGHT
    if room < _GB_PER_BILLION_16BIT * billions * _OVERHEAD or each < weights + _of_sequences(2, goal, kept=False):
        return Level.BALANCED
    return Level.AMPLE if each < weights + _of_sequences(4, goal, kept=True) else Level.SPACIOUS


def _of_sequences(count: int, goal: Goal, *, kept: bool) -> float:
    """GB that a GPU needs for so many sequences of 2048 tokens, beside the weights."""
    logits = 0 if goal.framework == "unsloth" else _LOGITS_GB
    activations = (_KEPT_GB if kept else _RECOMPUTED_GB) * math.pow(goal.billions, 2 / 3)
    return _CONTEXT_GB + count * (logits + activations)


def _level_of_cpu(memory: int, goal: Goal) -> Level:
    if not memory:
        return Level.TIGHT
    room = memory / GB
    if room < _GB_PER_BILLION_4BIT * goal.billions * _LEAST_OVERHEAD:
        return Level.OVERFULL
    return Level.TIGHT if room < _GB_PER_BILLION_32BIT * goal.billions * _LEAST_OVERHEAD else Level.BALANCED


def _for_gpu(gpus: tuple[Gpu, ...], level: Level, strategy: str, stack: Stack, goal: Goal) -> Iterator[Setting]:
    capability = min(gpu.capability for gpu in gpus)
    shown = f"compute capability {capability[0]}.{capability[1]}"
    yield Setting("device", "cuda", f"{len(gpus)} x {gpus[0].name}", _UNSLOTH)
    modern = capability >= (8, 0)
    yield Setting(
        "dtype", "bfloat16" if modern else "float16", f"{shown}: bfloat16 from 8.0 (Ampere) on, float16 below", _UNSLOTH
    )
    yield Setting("tf32", modern, f"{shown}: TF32 products from 8.0 on", _UNSLOTH)
    yield _attention(tuple(gpu.capability for gpu in gpus), stack, goal)
    yield _fp8(capability, shown)
    why = {
        "single": "one process",
        "ddp": f"{len(gpus)} GPUs, and a {goal.billions:g}b model fits on each",
        "fsdp": f"{len(gpus)} GPUs hold a {goal.billions:g}b model together; FSDP1 is deprecated",
        "deepspeed": f"{len(gpus)} GPUs hold a {goal.billions:g}b model together, by ZeRO 3",
    }
    yield Setting("strategy", strategy, why[strategy], _MULTI)
    yield from _memory(level, strategy, stack, goal, gpus)
    yield _allocator(stack)


def _attention(capabilities: tuple[tuple[int, int], ...], stack: Stack, goal: Goal) -> Setting:
    """flash-attn 4 on Hopper, where it has run; on Blackwell its backward hung with nvidia-cutlass-dsl 4.6.0.

    flash-attn 2 where its wheel has code for the GPU, which differs from wheel to wheel: the image's claims say it.

    unsloth-setup says 7.5 with flash-attn 1 below 8.0: flash-attn 2's own README and sources say 8.0, and nothing ships
    flash-attn 1 any more; xformers and SDPA take its place."""
    capability, here = min(capabilities), "flash-attn" in stack.packages
    targets = stack.code.get("flash-attn", ())
    if capability[0] == max(capabilities)[0] == 9 and "flash-attn-4" in stack.packages:
        why = f"flash-attn-4 {stack.packages['flash-attn-4']} is here, and compiled for this GPU at the first step"
        source = "the image's claims C13 and G3; flash-attention#2797"
        return Setting("attention", "flash_attention_4", why, source)
    if here and all(any(target_runs_on(target, gpu) for target in targets) for gpu in capabilities):
        why = f"flash-attn {stack.packages['flash-attn']} is here, with code for {_capabilities(targets)}"
        return Setting("attention", "flash_attention_2", why, "the image's claim S5; " + _UNSLOTH)
    if (7, 5) <= capability < (10, 0) and "xformers" in stack.packages and goal.framework in _WITH_XFORMERS:
        why = f"no flash-attn 2 for this GPU and image; xformers {stack.packages['xformers']} saves as much memory"
        return Setting("attention", "xformers", why, _AXOLOTL)
    if capability < (8, 0):
        why = "flash-attn 2 starts at 8.0; torch's SDPA has a memory-efficient kernel for older GPUs"
    elif not here:
        why = "flash-attn is not in this image; torch's SDPA brings a flash kernel of its own"
    elif targets:
        why = f"this image's flash-attn has code for {_capabilities(targets)} alone; torch's SDPA has it for this GPU"
    else:
        why = "the image has no claim for which GPUs its flash-attn has code; torch's SDPA brings a flash kernel"
    return Setting("attention", "sdpa", why, _UNSLOTH)


def _capabilities(targets: tuple[str, ...]) -> str:
    """`sm_80` as people know it: 8.0."""
    return ", ".join(re.sub(r"\D*(\d+)(\d)", r"\1.\2", target) for target in targets)


def _fp8(capability: tuple[int, int], shown: str) -> Setting:
    """unsloth-setup and axolotl train in FP8 from 9.0 on, though 8.9's tensor cores have it too."""
    if capability >= (9, 0):
        why = f"{shown}: FP8 from Hopper on; it pays in full fine-tuning, with LoRA and 4-bit weights leave it off"
        return Setting("fp8", "available", why, _AXOLOTL)
    if capability >= (8, 9):
        why = f"{shown}: FP8 products run (torch._scaled_mm), the frameworks' FP8 training wants 9.0"
        return Setting("fp8", "inference only", why, f"{_AXOLOTL}; torch._scaled_mm")
    return Setting("fp8", "no", f"{shown}: FP8 training needs 9.0 (Hopper)", _AXOLOTL)


def _memory(level: Level, strategy: str, stack: Stack, goal: Goal, gpus: tuple[Gpu, ...]) -> Iterator[Setting]:
    """What the room for one model decides."""
    (each, holders), size = _room(gpus, strategy), f"{goal.billions:g}b"
    room = each * holders
    quantization = _quantization(level, strategy, stack, goal, room, each)
    yield quantization
    yield _optimizer(level, strategy, stack, goal, room)
    recompute = level < Level.SPACIOUS
    unsloth = goal.framework == "unsloth"
    kept = f"{each:.0f} GB a GPU keep all activations"
    yield Setting(
        "gradient_checkpointing",
        "unsloth" if recompute and unsloth else recompute,
        "activations are computed again instead of kept" if recompute else kept,
        _UNSLOTH if recompute else _OWN,
    )
    yield _reentrant(strategy)
    stored = _GB_PER_BILLION_4BIT if quantization.value else _GB_PER_BILLION_16BIT
    # Sequences at once, in what the weights leave of each GPU.
    left, wanted = each - stored * goal.billions / holders, {Level.OVERFULL: 1, Level.TIGHT: 1, Level.BALANCED: 2}
    fitting = [count for count in (4, 2) if left >= _of_sequences(count, goal, kept=level is Level.SPACIOUS)]
    batch = min(wanted.get(level, 4), max(fitting, default=1))
    why = f"{each:.0f} GB a GPU, {size}, 2048 tokens of up to 152,064 words"
    yield Setting("batch_size", batch, why, f"{_UNSLOTH}; {_OWN}")
    yield _accumulation(batch, len(gpus))


def _quantization(level: Level, strategy: str, stack: Stack, goal: Goal, room: float, each: float) -> Setting:
    needed = _GB_PER_BILLION_16BIT * goal.billions * _OVERHEAD
    short = f"in 16 bit, {goal.billions:g}b and its training want {needed:.0f} GB, there are {room:.0f}"
    if room >= needed:
        short = f"{each:.0f} GB a GPU have no room for two sequences beside 16-bit weights of {goal.billions:g}b"
    obstacle = ""
    if "bitsandbytes" not in stack.packages:
        obstacle = "bitsandbytes is not in this image"
    elif goal.framework == "colossalai":
        obstacle = "ColossalAI's plugins are tried with 16-bit weights alone"
    elif strategy in SHARDING and goal.framework != "axolotl":
        obstacle = "of these frameworks axolotl alone shards 4-bit weights (--for axolotl)"
    if level >= Level.AMPLE:
        short = f"{room:.0f} GB holds a 16-bit {goal.billions:g}b model and its training ({needed:.0f} GB)"
    elif obstacle:
        short = f"{short}; but {obstacle}"
    return Setting("load_in_4bit", level < Level.AMPLE and not obstacle, short, _UNSLOTH)


def _optimizer(level: Level, strategy: str, stack: Stack, goal: Goal, room: float) -> Setting:
    """bitsandbytes' 8-bit states can't be sharded (hint fsdp2-adamw-8bit); an adapter's are small anyway."""
    tight = level <= Level.TIGHT
    why = f"{room:.0f} GB is {'tight' if tight else 'enough'} for {goal.billions:g}b"
    if tight and strategy in SHARDING:
        why += "; bitsandbytes' 8-bit AdamW does not work on sharded tensors"
    elif tight and "bitsandbytes" not in stack.packages:
        why += "; adamw_8bit would need bitsandbytes"
    frugal = tight and strategy not in SHARDING and "bitsandbytes" in stack.packages
    source = _MULTI if strategy in SHARDING else _UNSLOTH
    return Setting("optimizer", "adamw_8bit" if frugal else "adamw_torch_fused", why, source)


def _reentrant(strategy: str) -> Setting:
    """Of torch's two checkpointings; ZeRO 3 gathers weights in hooks, which the newer one does not see repeated."""
    if strategy == "deepspeed":
        why = "with False, ZeRO 3 ends in CheckpointError: recomputed values have different metadata"
        return Setting("use_reentrant", True, why, _MULTI)
    return Setting("use_reentrant", False, "what torch recommends", "torch.utils.checkpoint")


def _accumulation(batch: int, workers: int) -> Setting:
    steps = max(1, _EFFECTIVE_BATCH // (batch * workers))
    shared = f" x {workers} GPUs" if workers > 1 else ""
    why = f"{steps} x {batch}{shared} = {steps * batch * workers} sequences an optimizer step"
    return Setting("gradient_accumulation", steps, why, _UNSLOTH)


def _allocator(stack: Stack) -> Setting:
    found = re.match(r"(\d+)\.(\d+)", stack.torch)
    release = (int(found[1]), int(found[2])) if found else None
    if release and release < (2, 2):
        return Setting("allocator", "", "needs torch 2.2", _AXOLOTL)
    variable = allocator_variable(release or (2, 10))
    why = "less fragmentation; the variable's name changed in torch 2.10"
    return Setting("allocator", f"{variable}={ALLOCATOR}", why, _AXOLOTL)


def _for_cpu(level: Level, stack: Stack, goal: Goal) -> Iterator[Setting]:
    yield Setting("device", "cpu", "no GPU that this torch can use", _UNSLOTH)
    yield Setting("dtype", "float32", "what CPUs compute best", _UNSLOTH)
    yield Setting("tf32", False, "a GPU's number format", _UNSLOTH)
    yield Setting("attention", "sdpa", "flash-attn and xformers run on GPUs alone", _UNSLOTH)
    yield Setting("fp8", "no", "FP8 training needs a Hopper GPU", _AXOLOTL)
    yield Setting("strategy", "single", "one process", _MULTI)
    quantized = level < Level.BALANCED and "bitsandbytes" in stack.packages and goal.framework != "colossalai"
    why = "memory is short, and bitsandbytes computes NF4 on CPUs too" if quantized else "it saves memory, not time"
    yield Setting("load_in_4bit", quantized, why, "bitsandbytes' documentation")
    yield Setting("optimizer", "adamw_torch", "the others are GPU code", _TRANSFORMERS)
    yield Setting("gradient_checkpointing", True, "activations are computed again", _UNSLOTH)
    yield _reentrant("single")
    yield Setting("batch_size", 1, "a CPU is busy with one sequence", _OWN)
    yield _accumulation(1, 1)
    yield Setting("allocator", "", "a setting of CUDA's allocator", _AXOLOTL)


def _warnings(hardware: Hardware, stack: Stack, advice: Advice) -> Iterator[str]:
    yield from _about_gpus(hardware, stack, advice)
    goal = advice.goal
    if advice.level is Level.OVERFULL:
        able = len(advice.gpus) > 1 and advice.strategy not in SHARDING and goal.framework != "colossalai"
        way = "shard it over the GPUs (--strategy fsdp)" if able else "take more or larger GPUs"
        yield f"a {goal.billions:g}b model does not fit, even in 4-bit: take a smaller one, or {way}"
    elif advice.strategy in SHARDING and advice.level < Level.AMPLE and not advice["load_in_4bit"]:
        yield f"a {goal.billions:g}b model hardly fits over these GPUs in 16 bit: --for axolotl shards it in 4-bit"
    if goal.strategy and goal.strategy != advice.strategy:
        why = _why_not(goal.strategy, stack, goal.framework, len(advice.gpus))
        yield f"{goal.strategy} is not possible here: {why}"
    if goal.framework == "unsloth" and not advice.gpus:
        yield "unsloth does not start without a GPU: the snippet is transformers'"
    if advice.gpus and hardware.shm is not None and hardware.shm < _ROOMY_SHM:
        yield (
            f"/dev/shm has {hardware.shm / GB:.2f} GB: start the container with --ipc=host or --shm-size=8g, "
            "data loader workers and NCCL need it"
        )
    several = len(advice.gpus) > 1
    wanted, source = (_DISK_OF_SEVERAL, _MULTI) if several else (_DISK, _AXOLOTL)
    for disk in hardware.disks:
        if not disk.writable:
            yield (
                f"{disk.path}, for {disk.holds}, is not this user's to write to: mount a named volume there, a folder "
                "of yours with `--user $(id -u):$(id -g)`, or one for everybody (`install -d -m 1777 FOLDER`)"
            )
        if disk.free < wanted:
            yield (
                f"{disk.path} has {disk.free / GB:.0f} GB free for {disk.holds}: {wanted / GB:.0f} GB or more are "
                f"recommended for weights, checkpoints and data; mount a larger disk there ({source})"
            )


def _about_gpus(hardware: Hardware, stack: Stack, advice: Advice) -> Iterator[str]:
    able = [gpu for gpu in hardware.gpus if runs_on(stack.archs, gpu.capability)]
    for gpu in hardware.gpus:
        if gpu not in able:
            arch = f"sm_{gpu.capability[0]}{gpu.capability[1]}"
            yield f"torch {stack.torch} has no code for {gpu.name} ({arch}): it is left out; take an image with {arch}"
    for name, (major, minor) in {one.name: one.capability for one in able if not one.assembled}.items():
        yield (
            f"Triton's ptxas does not know {name} (sm_{major}{minor}): torch.compile and what is written in Triton "
            "(unsloth, Liger) fail here; take an image of a newer torch, or set TRITON_PTXAS_PATH and "
            "TRITON_PTXAS_BLACKWELL_PATH to a newer CUDA's ptxas (triton-lang/triton#8539)"
        )
    if not able:
        yield "there is no GPU to train on: these settings are for the CPU, fit for trying things out alone"
    if len({(gpu.name, gpu.capability, gpu.memory) for gpu in advice.gpus}) > 1:
        yield (
            "the GPUs differ: settings are for the weakest, the slowest sets the pace, and NCCL may need "
            f"NCCL_P2P_DISABLE=1 ({_MULTI})"
        )
    for gpu in (one for one in advice.gpus if one.unified):
        yield (
            f"{gpu.name} shares its memory with the CPU: settings count on {gpu.memory / GB:.0f} GB ({_OWN}: "
            f"{_KEPT_FOR_THE_MACHINE / GB:.0f} GB less than there are), and what is offloaded to the CPU stays in the "
            "same memory. What the page cache holds looks taken to CUDA: where an allocation fails, run "
            f"`sync; echo 3 > /proc/sys/vm/drop_caches` on the host as root ({_SPARK})"
        )
    if any(gpu.mig for gpu in able):
        yield "this is a MIG slice: a process sees one slice at a time, and NCCL does not join them"
    if len(able) > 1 and advice.goal.framework == "unsloth":
        yield f"{len(able)} GPUs are here and the snippet uses one: unsloth is tried on one GPU alone"
