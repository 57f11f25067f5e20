"""The claims of the multigpu tier, from the resolved image and the host's inventory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

from packaging.version import Version

from images.hardware.inventory import Inventory, Link
from images.validation.claims.context import ClaimContext
from validate.claims import Claim, Tier
from validate.evidence import NoEvidence

if TYPE_CHECKING:
    from validate.checks.multigpu._ranks import ComparisonsRow
    from validate.checks.multigpu.bandwidth import BandwidthOfHost
    from validate.checks.multigpu.collectives import CollectivesRow, NcclOfImage, NcclSettingsOfHost, TransportOfHost
    from validate.checks.multigpu.shared_memory import SharedMemoryRow

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
_EVENLY: Mapping[str, object] = {"sharded": True, "parts make the whole": True}


_OfHost: TypeAlias = "NcclOfImage | NcclSettingsOfHost | TransportOfHost | BandwidthOfHost | NoEvidence"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One claim of the tier. `ranks` in `expect` is filled in."""

    id: str
    probe: str
    statement: str
    expect: CollectivesRow | ComparisonsRow | SharedMemoryRow = field(
        default_factory=lambda: cast("ComparisonsRow", {})
    )
    needs: tuple[str, ...] = ()
    """Pins without which there is nothing to claim."""
    torch: str = "0"
    """The first torch release that can."""
    capability: tuple[int, int] | None = None
    """The least that every GPU must have."""
    required: bool = True


ROWS: Mapping[str, Row] = {
    "collectives": Row(
        id="M1",
        probe="multigpu.collectives",
        statement="collectives of whole numbers are exact, on different data a rank",
        expect={
            "operations": [
                "all_reduce",
                "all_gather",
                "reduce_scatter",
                "broadcast",
                "all_to_all",
                "send and receive",
            ],
            "sizes": [1, 1027, 1 << 20],
        },
    ),
    "settings": Row(
        id="M1", probe="multigpu.collectives", statement="no file and no variable of the image changes NCCL"
    ),
    "nccl": Row(
        id="M1",
        probe="multigpu.collectives",
        statement="one NCCL runs, unchanged from the wheel that owns it, made for torch's CUDA",
    ),
    "transport": Row(
        id="M1", probe="multigpu.collectives", statement="ranks of one host talk over the best way its GPUs have"
    ),
    "ddp": Row(
        id="M2",
        probe="multigpu.ddp",
        statement="gradients of DDP are those of one process",
        expect={"tolerance": {"gradients": _SAME, "weights": _SAME}, "facts": {"same on every rank": True}},
    ),
    "ray train": Row(
        id="M2",
        probe="multigpu.ray_train",
        statement="the same under ray[train], a worker a GPU",
        needs=("ray",),
        expect={"tolerance": {"gradients": _SAME, "weights": _SAME}, "facts": {"same on every rank": True}},
    ),
    "fsdp2 float32": Row(
        id="M3",
        probe="multigpu.fsdp",
        statement="FSDP2 trains as one process does",
        expect={"tolerance": {"gradients": _SAME, "weights": _TRAINED}, "facts": {**_EVENLY}},
    ),
    "fsdp2 bfloat16": Row(
        id="M3",
        probe="multigpu.fsdp",
        statement="FSDP2 in mixed precision has the gradients of one process in bfloat16, added up in float32",
        expect={"tolerance": {"gradients": _TRAINED}, "facts": {**_EVENLY, "gradients": ["torch.float32"]}},
    ),
    "fsdp2 4-bit": Row(
        id="M3",
        probe="multigpu.fsdp",
        statement="FSDP2 shards frozen NF4 weights as they are stored, and adapters over them learn as on one GPU",
        needs=("bitsandbytes",),
        # 2.7.1 refuses a group of two dtypes: what is stored in bfloat16, and the float32 adapters over it.
        torch="2.8",
        expect={
            "tolerance": {"outputs": _TRAINED, "gradients": _TRAINED},
            "facts": {**_EVENLY, "stored as": ["torch.bfloat16"], "frozen": 2},
        },
    ),
    "fsdp2 checkpoint": Row(
        id="M3",
        probe="multigpu.fsdp",
        statement="a sharded checkpoint restores weights and moments bit by bit, and training goes on the same",
        expect={
            "facts": {
                "differed before": True,
                "same weights": True,
                "same moments": True,
                "same third step": True,
                "moments": 24,
            }
        },
    ),
    **{
        f"zero {stage}": Row(
            id="M4",
            probe="multigpu.zero",
            statement=f"DeepSpeed's ZeRO {stage} trains as one process does",
            needs=("deepspeed",),
            expect={
                "stage": stage,
                "tolerance": {"losses": _SAME, "weights": _TRAINED},
                "facts": {"stage": stage, "weights partitioned": stage == 3, "same on every rank": True},
            },
        )
        for stage in (1, 2, 3)
    },
    "fp8 fsdp2": Row(
        id="M5",
        probe="multigpu.fp8",
        statement="FP8 training under FSDP2, gathered in FP8, has the gradients of one process in FP8",
        needs=("torchao",),
        torch="2.7",
        capability=_FP8_CAPABILITY,
        expect={
            "tolerance": {"gradients": 1e-3},
            # SQNR 18 dB; exactly float32 would not be FP8.
            "figures": {"distance from float32": [0.005, 0.126]},
            "facts": {**_EVENLY, "layers": ["Float8Linear"]},
        },
    ),
    "bandwidth": Row(
        id="M6",
        probe="multigpu.bandwidth",
        statement="ranks talk as fast as their link lets expect (a warning, never a failure)",
        required=False,
    ),
    "/dev/shm": Row(
        id="M7",
        probe="multigpu.shared_memory",
        statement="data loader workers hand over batches through /dev/shm",
        expect={"least": LEAST_SHARED_MEMORY},
    ),
    "tensor parallel": Row(
        id="M8",
        probe="multigpu.parallel",
        statement="a step of tensor parallelism is one process's",
        expect={
            "tolerance": {"outputs": _SAME, "gradients": _SAME},
            "facts": {"split evenly": True, "same on every rank": True},
        },
    ),
    "context parallel": Row(
        id="M8",
        probe="multigpu.parallel",
        statement="a step of context parallelism (ring attention in bfloat16) is one process's, by rule T",
        torch="2.7",
        capability=_FLASH_CAPABILITY,
        expect={"tolerance": {"gradients": "T"}},
    ),
    "hsdp": Row(
        id="M8",
        probe="multigpu.parallel",
        statement="on a mesh that replicates and shards, FSDP2 trains as one process does",
        expect={
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
    no_gpu = context.no_ranks if device == "cuda" else context.no_gpu
    count = len(inventory.gpus) if inventory else 0
    ranks = _power_of_two(count) if inventory else None
    torch = Version(next(pin.version for pin in image.pins if pin.name == "torch"))
    link = link_of(inventory)
    for subject, row in ROWS.items():
        if not all(image.pin(name) for name in row.needs):
            continue
        gate = _gate(row, torch, inventory)
        yield Claim(
            id=row.id,
            subject=subject,
            tier=Tier.MULTIGPU,
            probe=row.probe,
            statement=row.statement,
            # What these GPUs or this torch can't do is not held against the image.
            required=row.required and not gate,
            expect={
                **row.expect,
                "device": device,
                "ranks": ranks,
                **_of_host(subject, context, link),
                **({"minimum": 0.0} if subject == "bandwidth" and device == "cpu" else {}),
                **({"not_applicable": gate} if gate else {}),
            },
            unproven=no_gpu,
        )


def link_of(inventory: Inventory | None) -> str:
    """How the host's GPUs reach each other, the weakest pair's way; empty where the host could not tell."""
    links = {link for _, _, link in inventory.links} if inventory else set()
    return str(max(links, key=list(Link).index)) if links else ""


def _power_of_two(count: int) -> int:
    """As validate/checks/multigpu/_launch.py, which runs in the container."""
    return 1 << (min(count, MOST_RANKS).bit_length() - 1) if count else 0


def _gate(row: Row, torch: Version, inventory: Inventory | None) -> str:
    if torch < Version(row.torch):
        return f"takes torch {row.torch}, this is {torch}"
    for gpu in inventory.gpus if inventory and row.capability else ():
        if gpu.capability < (row.capability or (0, 0)):
            wanted, has = (".".join(map(str, one)) for one in (row.capability or (), gpu.capability))
            return f"takes compute capability {wanted}, {gpu.name} has {has}"
    return ""


def _of_host(subject: str, context: ClaimContext, link: str) -> _OfHost:
    """What a claim expects of this host, beside what it expects everywhere."""
    if subject == "nccl":
        return {"cuda": str(context.image.wheel_cuda)}
    if subject == "settings":
        return {"injected": dict(context.injected)}
    if subject == "transport":
        return {"link": link, "injected": dict(context.injected)}
    if subject == "bandwidth":
        return {"link": link, "minimum": _minimum(link, context.inventory)}
    return {}


def _minimum(link: str, inventory: Inventory | None) -> float:
    """Bytes a second that the link should give at least."""
    if link == Link.NVLINK:
        links = min((gpu.nvlinks for gpu in inventory.gpus), default=0) if inventory else 0
        return max(_PCIE_MINIMUM, links * _NVLINK_BYTES * _NVLINK_SHARE)
    return _PCIE_MINIMUM if link == Link.PCIE else _SHM_MINIMUM
