"""Derive the training settings that suit a machine and an image from facts about both.

Pure: no I/O, no torch. Only rules that a document or a release states are here. How large a model
fits is an estimate, which `doctor` does not make. Memory is in bytes, and a GB is 10^9 of them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from validate import elsewhere
from validate.compute_capability import target_runs_on

GB = 1000**3


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG slice of it, as training sees it."""

    name: str
    capability: tuple[int, int]
    memory: int
    mig: bool = False
    """Whether it is a MIG slice."""
    unified: bool = False
    """The CPU uses the same memory: GB10 (DGX Spark), Jetson. GPUs beside Grace have their own."""
    assembled: bool = True
    """Whether Triton's ptxas can assemble for it. False only if it lists its targets, and this GPU
    is not among them."""

    @property
    def arch(self) -> str:
        """Return `sm_90` for compute capability 9.0."""
        major, minor = self.capability
        return f"sm_{major}{minor}"


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The disk that holds what training writes."""

    path: str
    holds: str
    """What goes there: `checkpoints`, `downloads`."""
    free: int
    writable: bool = True
    """Whether this user may write there."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The machine, as this container sees it."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    """The driver's version; empty: there is none."""
    cpus: int = 1
    """Cores that this process may use."""
    memory: int = 0
    """Bytes that the container may use; 0: not known."""
    shm: int | None = None
    """Size of /dev/shm; None: not known."""
    locked_memory: int | None = None
    """The limit of locked memory (`ulimit -l`); None: there is none."""
    infiniband: bool = False
    """Whether the container has InfiniBand devices."""
    disks: tuple[Disk, ...] = ()
    visible: tuple[str, ...] = ()
    """The entries of CUDA_VISIBLE_DEVICES by which these GPUs were chosen; empty: it is not set."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What the image brings."""

    torch: str = ""
    """Its version; empty: it can't be imported."""
    archs: tuple[str, ...] = ()
    """Machine code (`sm_80`) and PTX (`compute_90`) of this torch; empty: not known."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Version of each package whose import succeeded."""
    code: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Package -> the targets (`sm_80`) that its kernels are compiled for, by the image's claims."""


@dataclass(frozen=True)
class Setting:
    """A setting with the fact that it follows from, and where that rule is written."""

    name: str
    """`dtype`, `attention`, or the name of an environment variable."""
    value: str
    why: str
    """The fact."""
    source: str
    """An address, or the name of a document."""


@dataclass(frozen=True)
class Advice:
    """Everything that follows from one machine and one image."""

    settings: tuple[Setting, ...]
    warnings: tuple[str, ...]


_CUDA_GUIDE = "CUDA C++ Programming Guide, Compute Capabilities"
_TORCH_CUDA = "https://pytorch.org/docs/stable/notes/cuda.html"
_SPARK = "https://build.nvidia.com/spark"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"

_DOCKERS_SHM = 64 * 1024**2
"""Docker's default size of /dev/shm. NCCL and data loaders fail with it (NVIDIA/nccl#525)."""


def advise(hardware: Hardware, stack: Stack) -> Advice:
    """Return the settings and the warnings for one machine and one image.

    The settings are for the GPUs that the image's torch has code for; if there are none, for the
    CPU. `stack` is what the image brings: torch, the targets of its code, and its packages.
    """
    usable = [gpu for gpu in hardware.gpus if runs_on(stack.archs, gpu.capability)]
    if usable:
        settings = [*_choose_for_gpus(usable, hardware, stack)]
    else:
        settings = [*_choose_for_cpu()]
    warnings = [
        *_warn_about_gpus(usable, hardware, stack),
        *_warn_about_container(usable, hardware),
    ]
    # A container without these options need not be Docker's.
    advice = [elsewhere.with_replacements(warning) for warning in warnings]
    return Advice(tuple(settings), tuple(advice))


def runs_on(targets: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Return whether code for these targets (`sm_80`, `compute_90`) runs on a GPU.

    targets: if none are known, True.
    """
    return not targets or any(target_runs_on(target, capability) for target in targets)


def _choose_for_gpus(usable: list[Gpu], hardware: Hardware, stack: Stack) -> Iterator[Setting]:
    """Yield the settings for the GPUs that this torch has code for.

    A process group needs the same settings on all GPUs, so the weakest one decides; the kernel for
    attention must run on each of them. `usable` are the GPUs that torch has code for, at least one.
    `hardware` lists all GPUs.
    """
    capability = min(gpu.capability for gpu in usable)
    reason = f"this torch has code for {len(usable)} of {len(hardware.gpus)} GPUs"
    yield Setting("device", "cuda", reason, _TORCH_CUDA)
    if len(usable) < len(hardware.gpus):
        yield _hide_unusable_gpus(usable, hardware)

    capability_text = f"compute capability {_write_dotted(capability)}"
    if capability >= (8, 0):
        reason = f"{capability_text}: bfloat16 from 8.0 (Ampere) on"
        yield Setting("dtype", "bfloat16", reason, _CUDA_GUIDE)
        reason = f"{capability_text}: TF32 products from 8.0 on"
        yield Setting("tf32", "yes", reason, _CUDA_GUIDE)
    else:
        reason = f"{capability_text}: bfloat16 starts at 8.0 (Ampere)"
        yield Setting("dtype", "float16", reason, _CUDA_GUIDE)
        reason = f"{capability_text}: TF32 products start at 8.0"
        yield Setting("tf32", "no", reason, _CUDA_GUIDE)

    yield _choose_attention([gpu.capability for gpu in usable], stack)
    yield _choose_fp8(capability)


def _hide_unusable_gpus(usable: list[Gpu], hardware: Hardware) -> Setting:
    """Return the setting of CUDA_VISIBLE_DEVICES that hides the GPUs that torch has no code for.

    If CUDA_VISIBLE_DEVICES is set already, GPUs are named by its entries, which may be `2` or
    `GPU-aa`; else by their numbers.
    """
    # Entries are in the order of the GPUs. If there are fewer of them, or none, the other GPUs are
    # named by their numbers.
    unnamed = range(len(hardware.visible), len(hardware.gpus))
    names = [*hardware.visible, *map(str, unnamed)]
    usable_names = []
    # There may be more entries than GPUs: those at the end name none that torch sees.
    for name, gpu in zip(names, hardware.gpus, strict=False):
        # GPUs of one model are equal, and all of them are usable or none.
        if gpu in usable:
            usable_names.append(name)
    reason = "the other GPUs have no code in this torch"
    return Setting("CUDA_VISIBLE_DEVICES", ",".join(usable_names), reason, _TORCH_CUDA)


def _choose_for_cpu() -> Iterator[Setting]:
    """Yield the settings for a machine without a GPU that this torch has code for."""
    yield Setting("device", "cpu", "no GPU that this torch has code for", _TORCH_CUDA)
    reason = "the type that every CPU computes in"
    yield Setting("dtype", "float32", reason, "torch.set_default_dtype")
    yield Setting("attention", "sdpa", "flash-attn and xformers are GPU code", "their READMEs")


def _choose_attention(capabilities: list[tuple[int, int]], stack: Stack) -> Setting:
    """Return the fastest attention that works on all GPUs of these compute capabilities.

    The first of these that does: flash-attn 4, flash-attn 2, xformers, and torch's SDPA, which
    always works.
    """
    # flash-attn 4 compiles for any GPU, but has been seen to run only on Hopper, 9.x: on Blackwell
    # its backward hung with nvidia-cutlass-dsl 4.6.0 (flash-attention#2797).
    lowest, highest = min(capabilities), max(capabilities)
    are_all_hopper = lowest[0] == highest[0] == 9
    if are_all_hopper and "flash-attn-4" in stack.packages:
        version = stack.packages["flash-attn-4"]
        reason = f"flash-attn-4 {version} is here, and compiled for this GPU at the first step"
        source = "the image's claims; flash-attention#2797"
        return Setting("attention", "flash_attention_4", reason, source)

    # For which GPUs flash-attn 2 has code differs from wheel to wheel. The image's claims say
    # it, as targets such as `sm_80`.
    targets = stack.code.get("flash-attn", ())
    has_code_everywhere = bool(targets) and all(
        runs_on(targets, capability) for capability in capabilities
    )
    if "flash-attn" in stack.packages and has_code_everywhere:
        version = stack.packages["flash-attn"]
        reason = f"flash-attn {version} is here, with code for {_list_capabilities(targets)}"
        return Setting("attention", "flash_attention_2", reason, "the image's claims")

    # Only unsloth uses xformers. Axolotl does not any more: its patch needs
    # LlamaAttention.num_heads, which transformers 4.48 dropped.
    takes_xformers = {"unsloth", "xformers"} <= stack.packages.keys()
    if takes_xformers and lowest >= (7, 5) and highest < (10, 0):
        version = stack.packages["xformers"]
        reason = f"no flash-attn 2 for these GPUs; unsloth takes xformers {version}"
        return Setting("attention", "xformers", reason, "unsloth's README")

    reason = _explain_sdpa(lowest, targets, stack)
    return Setting("attention", "sdpa", reason, "https://github.com/Dao-AILab/flash-attention")


def _explain_sdpa(lowest: tuple[int, int], targets: tuple[str, ...], stack: Stack) -> str:
    """Return why torch's own attention (SDPA) is proposed and not flash-attn 2.

    Called after flash-attn 2 was ruled out: if its targets are known, they miss one of the GPUs.

    lowest: the lowest compute capability of the GPUs.
    targets: the GPUs that the image's flash-attn has code for (`sm_80`); empty: no claim says it.
    """
    if lowest < (8, 0):
        return (
            "flash-attn 2 starts at 8.0; torch's SDPA has a memory-efficient kernel for older GPUs"
        )
    if "flash-attn" not in stack.packages:
        return "flash-attn is not in this image; torch's SDPA brings a flash kernel of its own"
    if targets:
        return (
            f"this flash-attn has code only for {_list_capabilities(targets)}; "
            "torch's SDPA has code for these GPUs"
        )
    return (
        "no claim says which GPUs this flash-attn has code for; torch's SDPA brings a flash kernel"
    )


def _choose_fp8(capability: tuple[int, int]) -> Setting:
    """Return the setting `fp8`: `yes`, `inference only` or `no`, with the reason.

    It follows from the compute capability of the GPUs. The tensor cores of 8.9 have FP8, but the
    frameworks' training requires 9.0.
    """
    source = "torch._scaled_mm; torchao's float8 training"
    capability_text = f"compute capability {_write_dotted(capability)}"
    if capability >= (9, 0):
        reason = f"{capability_text}: FP8 training from 9.0 (Hopper) on"
        return Setting("fp8", "yes", reason, source)
    if capability >= (8, 9):
        reason = f"{capability_text}: has FP8 products, but FP8 training requires 9.0"
        return Setting("fp8", "inference only", reason, source)
    reason = f"{capability_text}: FP8 products start at 8.9, FP8 training at 9.0"
    return Setting("fp8", "no", reason, source)


def _warn_about_gpus(usable: list[Gpu], hardware: Hardware, stack: Stack) -> Iterator[str]:
    """Yield warnings about GPUs without code in this torch, and about peculiar ones.

    usable: the GPUs that this torch has code for.
    """
    if not usable:
        yield "there is no GPU that this torch can use: the settings are for the CPU"

    for gpu in hardware.gpus:
        if gpu not in usable:
            yield (
                f"torch {stack.torch} has no code for {gpu.name} ({gpu.arch}): "
                f"take an image with {gpu.arch}"
            )

    # GPUs of one model have the same warnings: give each once.
    models = dict.fromkeys(usable)
    for gpu in models:
        # Triton's assembler lists its targets, and this GPU is not among them.
        if not gpu.assembled:
            yield (
                f"Triton's ptxas does not know {gpu.name} ({gpu.arch}): torch.compile and what is "
                "written in Triton (unsloth, Liger) fail here; take an image of a newer torch, or "
                "set TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH to a newer CUDA's ptxas "
                "(triton-lang/triton#8539)"
            )
        if gpu.unified:
            yield (
                f"{gpu.name} shares its memory with the CPU: what is offloaded to the CPU stays "
                "in the same memory. The page cache counts as used for CUDA: where an allocation "
                "fails, run `sync; echo 3 > /proc/sys/vm/drop_caches` on the host as root "
                f"({_SPARK})"
            )

    if any(gpu.mig for gpu in usable):
        yield "this is a MIG slice: a process sees one slice at a time, and NCCL does not join them"
    if len(models) > 1:
        yield "the GPUs differ: settings are for the weakest, and the slowest sets the pace"


def _warn_about_container(usable: list[Gpu], hardware: Hardware) -> Iterator[str]:
    """Yield a warning for each thing that the container lacks, with the option that gives it.

    The limits of memory matter only for training on GPUs.
    """
    if usable and hardware.shm is not None and hardware.shm <= _DOCKERS_SHM:
        yield (
            f"/dev/shm has {hardware.shm / GB:.2f} GB, which is too little for NCCL and for data "
            "loaders with workers: start the container with --shm-size=8g or --ipc=host "
            "(NVIDIA/nccl#525)"
        )
    if usable and hardware.infiniband and hardware.locked_memory is not None:
        yield (
            f"only {hardware.locked_memory / GB:.2f} GB of memory may be locked (`ulimit -l`), and "
            "InfiniBand locks its buffers: start the container with --ulimit memlock=-1 "
            f"({_NCCL})"
        )
    for disk in hardware.disks:
        if not disk.writable:
            yield (
                f"you may not write to {disk.path}, which is for {disk.holds}: mount a named "
                "volume there, a folder of yours with `--user $(id -u):$(id -g)`, or one for "
                "everybody (`install -d -m 1777 FOLDER`)"
            )


def _write_dotted(capability: tuple[int, int]) -> str:
    """Return `9.0` for (9, 0)."""
    return f"{capability[0]}.{capability[1]}"


def _list_capabilities(targets: tuple[str, ...]) -> str:
    """Return `8.0, 9.0` for `sm_80` and `sm_90`."""
    return ", ".join(re.sub(r"\D*(\d+)(\d)", r"\1.\2", target) for target in targets)
