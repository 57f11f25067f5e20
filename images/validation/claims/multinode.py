"""The claims of the multinode tier: what the image must do in two containers that train together.

They are made from the image and the host's GPUs, half of which each container (node) gets. What is
measured and judged stands in the checks (validate/checks/multinode/). Nothing here reads the image
or the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from images.validation.claims.context import ClaimContext, claim
from images.validation.claims.gpu import choose_batch_rows
from images.validation.claims.multigpu import MOST_RANKS, RanksRow, reason_not_applicable
from validate.claims import Claim
from validate.nodes import NODES

if TYPE_CHECKING:
    from images.hardware.inventory import Inventory


ROWS = (
    RanksRow(
        check="rendezvous",
        subject="torchrun",
        probe="multinode.rendezvous",
        statement="torchrun on two nodes forms one group, given the first node's address",
        catches="a job of two nodes that waits at its start until it is cancelled",
    ),
    RanksRow(
        check="rendezvous",
        subject="torchrun-c10d",
        probe="multinode.rendezvous",
        statement="the same with torchrun's c10d rendezvous, where no node has a number",
        catches="nodes that find no common address in an elastic job",
    ),
    RanksRow(
        check="rendezvous",
        subject="accelerate",
        probe="multinode.rendezvous",
        statement="the same with `accelerate launch --num_machines 2`",
        catches="options of accelerate that its torch does not know",
        needs=("accelerate",),
    ),
    RanksRow(
        check="rendezvous",
        subject="deepspeed",
        probe="multinode.rendezvous",
        statement="the same with `deepspeed --no_ssh` on each node",
        catches="a launcher that asks for ssh, which the image lacks",
        needs=("deepspeed",),
    ),
    RanksRow(
        check="two-nodes",
        subject="collectives",
        probe="multinode.collectives",
        statement="collectives of whole numbers are exact between two nodes",
        catches="an NCCL that adds up wrongly over the network",
    ),
    RanksRow(
        check="two-nodes",
        subject="transport",
        probe="multinode.collectives",
        statement="NCCL takes the network between two nodes, by its own log",
        catches="a test of two nodes that measures shared memory",
    ),
    RanksRow(
        check="two-nodes",
        subject="ddp",
        probe="multinode.training",
        statement="gradients of DDP on two nodes are those of one process",
        catches="nodes that each train alone",
    ),
    RanksRow(
        check="two-nodes",
        subject="fsdp2",
        probe="multinode.training",
        statement="FSDP2 over two nodes trains as one process does",
        catches="shards of two nodes that are assembled wrongly",
    ),
    RanksRow(
        check="two-nodes",
        subject="hsdp",
        probe="multinode.training",
        statement="FSDP2 that shards within a node and replicates between nodes does the same",
        catches="nodes that do not exchange gradients",
    ),
    RanksRow(
        check="two-nodes",
        subject="checkpoint",
        probe="multinode.checkpoint",
        statement="one process reads a sharded checkpoint of two nodes bit by bit, and goes on",
        catches="a checkpoint that only a job of the same size can read",
    ),
    RanksRow(
        check="two-nodes",
        subject="death",
        probe="multinode.death",
        statement="a node whose processes are killed is reported by the other within 90 s",
        catches="a job that waits for a dead node, and costs GPU hours",
    ),
    RanksRow(
        check="two-nodes",
        subject="scaling",
        probe="multinode.scaling",
        statement="the model of `step` learns on two nodes by DDP; how fast is reported",
        catches="nodes that wait for each other longer than they compute",
        trains_step=True,
    ),
)
"""In the order that reports show."""


def multinode_claims(context: ClaimContext, *, device: str = "cuda") -> Iterator[Claim]:
    """Yield the claims of the multinode tier: all unproven if the GPUs have no two equal halves.

    `device`: "cpu" makes the claims of a rehearsal, in which the same checks run over gloo.
    """
    for row in ROWS:
        if not all(context.image.pin(name) for name in row.needs):
            continue
        ranks = NODES * ranks_of_node(context.inventory)
        expect: dict[str, Any] = {"device": device, "ranks": ranks or None, "nodes": NODES}
        if row.trains_step:
            expect |= {"rows": choose_batch_rows(context.inventory), "link": ""}
        yield claim(
            row.check,
            row.subject,
            row.probe,
            row.statement,
            expect,
            required=not row.trains_step,
            unproven=reason_unproven(context),
            not_applicable=reason_not_applicable(row, context),
        )


def ranks_of_node(inventory: Inventory | None) -> int:
    """Return how many ranks each node starts; 0 if the GPUs are not known or too few.

    A node has half of the GPUs. It takes a power of two of them, so that meshes and shards are
    even.
    """
    if not inventory or len(inventory.gpus) < NODES:
        return 0
    gpus_of_node = min(len(inventory.gpus), MOST_RANKS) // NODES
    return 1 << (gpus_of_node.bit_length() - 1)


def reason_unproven(context: ClaimContext) -> str:
    """Return why the tier can't be measured, and what to do; empty if the GPUs can be halved."""
    if context.no_gpu:
        return context.no_gpu
    # Claims that were written without a host are not measured.
    if context.inventory is None:
        return ""
    gpu_count = len(context.inventory.gpus)
    if gpu_count % NODES == 0:
        return ""
    gpus = "one GPU" if gpu_count == 1 else f"{gpu_count} GPUs"
    return (
        f"the host has {gpus}, and two nodes need equal halves: give this command on a machine "
        "with 2, 4 or 8 GPUs"
    )
