"""The claims of the multigpu tier, from the resolved image and the host's inventory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from images.hardware.inventory import Inventory, Link
from images.validation.claims.context import ClaimContext, claim
from validate.claims import Claim

MOST_RANKS = 8
LEAST_SHARED_MEMORY = 1 << 30
"""Bytes of /dev/shm: Docker's 64 MiB do not hold one prefetched batch a worker."""
_NVLINK_BYTES = 25e9
"""A link's bytes a second in one direction: NVLink 2, 3 and 4 (NVIDIA's data sheets of V100, A100 and H100); NVLink 5
has twice that. The minimum is a fraction of it, as what a program gets is less."""
_NVLINK_SHARE = 0.3
_PCIE_MINIMUM = 5e9
"""A third of what 16 lanes of PCIe 4 carry (31.5 GB/s of which 16 reach a program), half of what 8 do."""
_SHM_MINIMUM = 1e9
_SAME, _TRAINED = 1e-6, 1e-5
"""Relative errors of gradients and of trained weights (AdamW divides by small numbers). Measured: 6e-8 both."""
_FP8_CAPABILITY = (8, 9)
_FLASH_CAPABILITY = (8, 0)
_EVENLY = {"sharded": True, "parts make the whole": True}


@dataclass(frozen=True)
class Row:
    """One claim of the tier; its device, `ranks` and what it expects of the host are filled in."""

    id: str
    probe: str
    statement: str
    expect: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """Pins without which there is nothing to claim."""
    torch: str = "0"
    """The first torch release that can."""
    capability: tuple[int, int] = (0, 0)
    """The least that every GPU must have."""
    required: bool = True


ROWS: Mapping[str, Row] = {
    "collectives": Row(
        "M1",
        "multigpu.collectives",
        "collectives of whole numbers are exact, on different data a rank",
        {
            "operations": ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send and receive"],
            "sizes": [1, 1027, 1 << 20],
        },
    ),
    "settings": Row("M1", "multigpu.collectives", "no file and no variable of the image changes NCCL"),
    "nccl": Row(
        "M1", "multigpu.collectives", "one NCCL runs, unchanged from the wheel that owns it, made for torch's CUDA"
    ),
    "transport": Row("M1", "multigpu.collectives", "ranks of one host talk over the best way its GPUs have"),
    "ddp": Row(
        "M2",
        "multigpu.ddp",
        "gradients of DDP are those of one process",
        {"tolerance": {"gradients": _SAME, "weights": _SAME}, "facts": {"same on every rank": True}},
    ),
    "ray train": Row(
        "M2",
        "multigpu.ray_train",
        "the same under ray[train], a worker a GPU",
        {"tolerance": {"gradients": _SAME, "weights": _SAME}, "facts": {"same on every rank": True}},
        needs=("ray",),
    ),
    "fsdp2 float32": Row(
        "M3",
        "multigpu.fsdp",
        "FSDP2 trains as one process does",
        {"tolerance": {"gradients": _SAME, "weights": _TRAINED}, "facts": _EVENLY},
    ),
    "fsdp2 bfloat16": Row(
        "M3",
        "multigpu.fsdp",
        "FSDP2 in mixed precision has the gradients of one process in bfloat16, added up in float32",
        {"tolerance": {"gradients": _TRAINED}, "facts": {**_EVENLY, "gradients": ["torch.float32"]}},
    ),
    "fsdp2 4-bit": Row(
        "M3",
        "multigpu.fsdp",
        "FSDP2 shards frozen NF4 weights as they are stored, and adapters over them learn as on one GPU",
        {
            "tolerance": {"outputs": _TRAINED, "gradients": _TRAINED},
            "facts": {**_EVENLY, "stored as": ["torch.bfloat16"], "frozen": 2},
        },
        needs=("bitsandbytes",),
        # 2.7.1 refuses a group of two dtypes: what is stored in bfloat16, and the float32 adapters over it.
        torch="2.8",
    ),
    "fsdp2 checkpoint": Row(
        "M3",
        "multigpu.fsdp",
        "a sharded checkpoint restores weights and moments bit by bit, and training goes on the same",
        {
            "facts": {
                **dict.fromkeys(("differed before", "same weights", "same moments", "same third step"), True),
                "moments": 24,
            }
        },
    ),
    **{
        f"zero {stage}": Row(
            "M4",
            "multigpu.zero",
            f"DeepSpeed's ZeRO {stage} trains as one process does",
            {
                "stage": stage,
                "tolerance": {"losses": _SAME, "weights": _TRAINED},
                "facts": {"stage": stage, "weights partitioned": stage == 3, "same on every rank": True},
            },
            needs=("deepspeed",),
        )
        for stage in (1, 2, 3)
    },
    "fp8 fsdp2": Row(
        "M5",
        "multigpu.fp8",
        "FP8 training under FSDP2, gathered in FP8, has the gradients of one process in FP8",
        {
            "tolerance": {"gradients": 1e-3},
            # SQNR 18 dB; exactly float32 would not be FP8.
            "figures": {"distance from float32": [0.005, 0.126]},
            "facts": {**_EVENLY, "layers": ["Float8Linear"]},
        },
        needs=("torchao",),
        torch="2.7",
        capability=_FP8_CAPABILITY,
    ),
    "bandwidth": Row(
        "M6",
        "multigpu.bandwidth",
        "ranks talk as fast as their link lets expect (a warning, never a failure)",
        required=False,
    ),
    "/dev/shm": Row(
        "M7",
        "multigpu.shared_memory",
        "data loader workers hand over batches through /dev/shm",
        {"least": LEAST_SHARED_MEMORY},
    ),
    "tensor parallel": Row(
        "M8",
        "multigpu.parallel",
        "a step of tensor parallelism is one process's",
        {
            "tolerance": {"outputs": _SAME, "gradients": _SAME},
            "facts": {"split evenly": True, "same on every rank": True},
        },
    ),
    "context parallel": Row(
        "M8",
        "multigpu.parallel",
        "a step of context parallelism (ring attention in bfloat16) is one process's, by rule T",
        {"tolerance": {"gradients": "T"}},
        torch="2.7",
        capability=_FLASH_CAPABILITY,
    ),
    "hsdp": Row(
        "M8",
        "multigpu.parallel",
        "on a mesh that replicates and shards, FSDP2 trains as one process does",
        {
            "tolerance": {"gradients": _SAME, "weights": _TRAINED},
            "facts": {"placements": ["(Replicate(), Shard(dim=0))"]},
        },
    ),
}
"""Subject -> what is claimed, in the order that reports show."""


def multigpu_claims(context: ClaimContext, *, device: str = "cuda") -> Iterator[Claim]:
    """M1 to M8. Without a GPU, or with one alone, every claim exists and is unproven.

    `device` "cpu" is a rehearsal: the same probes over gloo. It has no minimum bandwidth, because other load on
    the machine decides what cores can carry.
    """
    image, inventory = context.image, context.inventory
    count = len(inventory.gpus) if inventory else 0
    # As the launcher in the container has it: meshes and shards are even then.
    ranks = 1 << (min(count, MOST_RANKS).bit_length() - 1) if count else None
    torch = Version(next(pin.version for pin in image.pins if pin.name == "torch"))
    link = link_of(inventory)
    minimum = _minimum(link, inventory) if device == "cuda" else 0.0
    of_host: Mapping[str, Mapping[str, Any]] = {
        "nccl": {"cuda": str(image.wheel_cuda)},
        "settings": {"injected": dict(context.injected)},
        "transport": {"link": link, "injected": dict(context.injected)},
        "bandwidth": {"link": link, "minimum": minimum},
    }
    for subject, row in ROWS.items():
        if not all(image.pin(name) for name in row.needs):
            continue
        gate = _gate(row, torch, inventory)
        expect = {**row.expect, "device": device, "ranks": ranks, **of_host.get(subject, {})}
        yield claim(
            row.id,
            subject,
            row.probe,
            row.statement,
            {**expect, "not_applicable": gate} if gate else expect,
            # What these GPUs or this torch can't do is not held against the image.
            required=row.required and not gate,
            unproven=context.no_ranks if device == "cuda" else context.no_gpu,
        )


def link_of(inventory: Inventory | None) -> str:
    """How the host's GPUs reach each other, the weakest pair's way; empty where the host could not tell."""
    links = {link for _, _, link in inventory.links} if inventory else set()
    return str(max(links, key=list(Link).index)) if links else ""


def _gate(row: Row, torch: Version, inventory: Inventory | None) -> str:
    if torch < Version(row.torch):
        return f"takes torch {row.torch}, this is {torch}"
    for gpu in inventory.gpus if inventory else ():
        if gpu.capability < row.capability:
            wanted, has = (".".join(map(str, one)) for one in (row.capability, gpu.capability))
            return f"takes compute capability {wanted}, {gpu.name} has {has}"
    return ""


def _minimum(link: str, inventory: Inventory | None) -> float:
    """Bytes a second that the link should give at least."""
    if link == Link.NVLINK:
        links = min((gpu.nvlinks for gpu in inventory.gpus), default=0) if inventory else 0
        return max(_PCIE_MINIMUM, links * _NVLINK_BYTES * _NVLINK_SHARE)
    return _PCIE_MINIMUM if link == Link.PCIE else _SHM_MINIMUM
