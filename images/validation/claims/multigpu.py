"""The claims of the multigpu tier: what the image must do on several GPUs together.

They are made from the image and the host's GPUs. Tolerances, and what every rank must report, stand
in the checks (validate/checks/multigpu/). Nothing here reads the image or the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from images.validation.claims.context import ClaimContext, claim, reason_too_old
from images.validation.claims.gpu import choose_batch_rows, reason_without_step
from validate.claims import Claim

if TYPE_CHECKING:
    from images.hardware.inventory import Inventory

MOST_RANKS = 8
"""The launcher in the container has the same limit (validate/checks/multigpu/_launch.py)."""


@dataclass(frozen=True, kw_only=True)
class RanksRow:
    """A claim about ranks on several GPUs, before it is known which image and host it is for."""

    check: str
    subject: str
    probe: str
    statement: str
    catches: str
    """What goes wrong for a user where the claim does not hold."""
    needs: tuple[str, ...] = ()
    """Packages that the image must pin. Without one of them there is no claim."""
    first_torch: str = "0"
    """The first torch release that can do it."""
    capability: tuple[int, int] = (0, 0)
    """The least compute capability that every GPU must have."""
    trains_step: bool = False
    """It trains the model of `step`. Such a claim only reports figures, so it is not required."""


ROWS = (
    RanksRow(
        check="collectives",
        subject="exact",
        probe="multigpu.collectives",
        statement="collectives of whole numbers are exact, on different data a rank",
        catches="an NCCL that adds up wrongly: every gradient is off, and no error is raised",
    ),
    RanksRow(
        check="collectives",
        subject="transport",
        probe="multigpu.collectives",
        statement="ranks of one host talk over the best way its GPUs have",
        catches="training over sockets although the GPUs have NVLink (planted: 15-nccl-conf)",
    ),
    RanksRow(
        check="ddp",
        subject="torchrun",
        probe="multigpu.ddp",
        statement="gradients of DDP are those of one process",
        catches="ranks that do not exchange gradients",
    ),
    RanksRow(
        check="ddp",
        subject="ray-train",
        probe="multigpu.ray_train",
        statement="the same under ray[train], a worker a GPU",
        catches="workers that each train alone",
        needs=("ray",),
    ),
    RanksRow(
        check="fsdp2",
        subject="float32",
        probe="multigpu.fsdp",
        statement="FSDP2 trains as one process does",
        catches="shards that are assembled wrongly",
    ),
    RanksRow(
        check="fsdp2",
        subject="bfloat16",
        probe="multigpu.fsdp",
        statement=(
            "FSDP2 in mixed precision has the gradients of one process in bfloat16,"
            " added up in float32"
        ),
        catches="gradients that are added up in bfloat16",
    ),
    RanksRow(
        check="fsdp2",
        subject="4bit",
        probe="multigpu.fsdp",
        statement=(
            "FSDP2 shards frozen NF4 weights as they are stored,"
            " and adapters over them learn as on one GPU"
        ),
        catches="4-bit weights that are cast, or gathered wrongly, when they are sharded",
        needs=("bitsandbytes",),
        # torch 2.7.1 refuses to shard a block with two dtypes: the stored bfloat16 and the float32
        # of the adapters.
        first_torch="2.8",
    ),
    RanksRow(
        check="fsdp2",
        subject="checkpoint",
        probe="multigpu.fsdp",
        statement=(
            "a sharded checkpoint restores weights and moments bit by bit,"
            " and training goes on the same"
        ),
        catches="a run that goes on from another state than it was saved in",
    ),
    RanksRow(
        check="fp8-fsdp2",
        subject="gradients",
        probe="multigpu.fp8",
        statement=(
            "FP8 training under FSDP2, gathered in FP8, has the gradients of one process in FP8"
        ),
        catches="layers that stay in float32 or bfloat16 although FP8 was asked for",
        needs=("torchao",),
        first_torch="2.7",
        capability=(8, 9),
    ),
    RanksRow(
        check="shared-memory",
        subject="dev-shm",
        probe="multigpu.shared_memory",
        statement="data loader workers hand over batches through /dev/shm",
        catches="data loader workers that die of SIGBUS with Docker's 64 MiB",
    ),
    RanksRow(
        check="parallel",
        subject="tensor",
        probe="multigpu.parallel",
        statement="a step of tensor parallelism is one process's",
        catches="parts of a product that are not added up",
    ),
    RanksRow(
        check="parallel",
        subject="context",
        probe="multigpu.parallel",
        statement=(
            "a step of context parallelism (ring attention in bfloat16) is one process's, by rule T"
        ),
        catches="ranks that attend to their own part of a sequence alone",
        first_torch="2.7",
        capability=(8, 0),
    ),
    RanksRow(
        check="parallel",
        subject="hsdp",
        probe="multigpu.parallel",
        statement="on a mesh that replicates and shards, FSDP2 trains as one process does",
        catches="groups of ranks that each train alone",
    ),
    RanksRow(
        check="scaling",
        subject="ddp",
        probe="multigpu.scaling",
        statement="the model of `step` learns on all GPUs by DDP; how fast is reported",
        catches="GPUs that wait for each other longer than they compute",
        trains_step=True,
    ),
    RanksRow(
        check="scaling",
        subject="fsdp2",
        probe="multigpu.scaling",
        statement="the same by FSDP2",
        catches="layers that are gathered while no GPU computes",
        trains_step=True,
    ),
    RanksRow(
        check="scaling",
        subject="zero3",
        probe="multigpu.scaling",
        statement="the same by DeepSpeed's ZeRO 3",
        catches="weights that are gathered while no GPU computes",
        needs=("deepspeed",),
        trains_step=True,
    ),
)
"""In the order that reports show."""


def multigpu_claims(context: ClaimContext, *, device: str = "cuda") -> Iterator[Claim]:
    """Yield what an image must do on several GPUs of a host together, a claim for each row of ROWS.

    `context` has the image, the host's GPUs (`inventory`) and why there are too few of them: then
    all claims are unproven for this reason. Rows about a package that the image lacks give none.

    `device`: "cpu" makes the claims of a test of the checks themselves, on a machine without GPUs.
    """
    # The reason for which nothing can be measured; empty if there is none.
    unproven = context.no_second_gpu if device == "cuda" else ""
    for row in ROWS:
        if not all(context.image.pin(name) for name in row.needs):
            continue

        # What the check needs to know of the host: it starts a process (rank) on each GPU, up to
        # MOST_RANKS, ...
        expect: dict[str, Any] = {"device": device, "ranks": ranks_of(context.inventory)}
        # ... must find that they talk over the fastest link that their GPUs have, ...
        if row.subject == "transport":
            expect["link"] = link_of(context.inventory)
            # Variables that the validation run sets itself: they are not the image's.
            expect["injected"] = dict(context.injected)
        # ... and trains on batches that fit into their memory. Such a claim reports how fast it
        # was, with the link, and is not required.
        if row.trains_step:
            expect["rows"] = choose_batch_rows(context.inventory)
            expect["link"] = link_of(context.inventory)
        yield claim(
            row.check,
            row.subject,
            row.probe,
            row.statement,
            expect,
            required=not row.trains_step,
            unproven=unproven,
            not_applicable=reason_not_applicable(row, context),
        )


def ranks_of(inventory: Inventory | None) -> int | None:
    """Return how many ranks the check starts on the host's GPUs; None if no GPU is known.

    It is a power of two, so that meshes and shards are even. The launcher in the container counts
    in the same way (validate/checks/multigpu/_launch.py).
    """
    if not inventory or not inventory.gpus:
        return None
    most = min(len(inventory.gpus), MOST_RANKS)
    # The largest power of two up to `most`.
    return 1 << (most.bit_length() - 1)


def reason_not_applicable(row: RanksRow, context: ClaimContext) -> str:
    """Return why the image's torch or the host's GPUs cannot do what is claimed; empty if they can.

    Without a host only torch is considered.
    """
    torch = context.image.pin("torch")
    if torch and Version(torch.version) < Version(row.first_torch):
        return f"takes torch {row.first_torch}, this is {torch.version}"
    if context.inventory is None:
        return ""
    if row.trains_step:
        return reason_without_step(context.inventory)
    return reason_too_old(context.inventory.gpus, row.capability)


def link_of(inventory: Inventory | None) -> str:
    """Return the slowest link between two of the host's GPUs; empty if the host could not tell."""
    if not inventory or not inventory.links:
        return ""
    # Imported only here: without several GPUs there are no links.
    from images.hardware.inventory import Link

    # Link lists them from the fastest to the slowest.
    from_fast_to_slow = list(Link)
    links = [link for _, _, link in inventory.links]
    return str(max(links, key=from_fast_to_slow.index))
