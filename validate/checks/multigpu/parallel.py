"""parallel: a step of tensor parallelism, of context parallelism and of HSDP is the step of one process."""

import importlib
from functools import partial
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import (
    SAME,
    SAME_AFTER_ADAMW,
    SEED,
    WIDTH,
    ComputingRank,
    RanksEvidence,
    RanksExpect,
    Requirements,
    Worker,
    compared,
    gradients,
    judge_computed,
    loss_of,
)
from validate.checks.multigpu.fsdp import fully_shard, sharded_beside_one
from validate.claims import Claim
from validate.judging import RULE_T, Finding

_HEADS, _LENGTH = 2, 128

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, claim: Claim) -> ComputingRank:
    """Measure one subject."""
    return {"tensor": _tensor, "context": _context, "hsdp": _hsdp}[claim.subject](worker)


def _tensor(worker: Worker) -> ComputingRank:
    """Each block's first product split by columns, its second by rows: the same data on every rank."""
    parallel = importlib.import_module("torch.distributed.tensor.parallel")
    model, alone, mesh = worker.model(), worker.model(), worker.mesh()
    plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    for block in model:
        parallel.parallelize_module(block, mesh, plan)
    x = worker.batch(0)
    output, wanted = model(x), alone(x)
    loss_of(output).backward()
    loss_of(wanted).backward()
    split = [one for block in model for one in (block.up.weight, block.down.weight)]
    shares = {int(one.to_local().numel()) * worker.ranks == one.numel() for one in split}
    lacking = _of_one_rank(worker.torch, alone, x, 1 / worker.ranks)
    return {
        "comparisons": {
            "outputs": compared({"y": output}, {"y": wanted}, of_one_rank={"y": lacking}),
            "gradients": compared(gradients(model), gradients(alone)),
        },
        "facts": {
            "split evenly": shares == {True},
            "same on every rank": worker.same_everywhere([output]),
        },
    }


def _of_one_rank(torch: Any, model: Any, x: Any, share: float) -> Any:
    """The output of the first rank without the other ranks' parts: the control."""
    for block in model:
        hidden = torch.nn.functional.gelu(block.up(block.norm(x)))
        width = int(share * hidden.shape[-1])
        x = x + hidden[:, :width] @ block.down.weight[:, :width].T + block.down.bias
    return x


def _context(worker: Worker) -> ComputingRank:
    """Ring attention over a sequence of which each rank holds a part, in bfloat16 because flash attention asks for it.

    The reference is float64 on the CPU, the plain error that of one process in bfloat16; the control sums the gradients
    of ranks that do not exchange anything.
    """
    torch, distributed = worker.torch, worker.distributed
    attention = importlib.import_module("torch.nn.attention")
    experimental = importlib.import_module("torch.distributed.tensor.experimental")
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(2, _LENGTH * worker.ranks, WIDTH, generator=generator)
    weight = torch.randn(3 * WIDTH, WIDTH, generator=generator) / WIDTH**0.5
    rounded = [one.to(worker.device, torch.bfloat16) for one in (x, weight)]
    exact = _attention_gradient(torch, *(one.cpu().double() for one in rounded))
    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
        plain = _attention_gradient(torch, *rounded)
        parts = [
            _attention_gradient(torch, part, rounded[1])
            for part in rounded[0].chunk(worker.ranks, dim=1)
        ]
        mine = rounded[0].clone()
        with experimental.context_parallel(worker.mesh(), buffers=[mine], buffer_seq_dims=[1]):
            length = mine.shape[1]
            found = _attention_gradient(torch, mine, rounded[1])
    total = found.float()
    distributed.all_reduce(total)
    separate = sum(part.float() for part in parts)
    return {
        "comparisons": {
            "gradients": {
                **compared({"w": total}, {"w": exact}, not_exchanged={"w": separate}),
                "plain_error": compared({"w": plain}, {"w": exact})["error"],
            }
        },
        "facts": {"length on this rank": length, "length": x.shape[1]},
    }


def _attention_gradient(torch: Any, x: Any, weight: Any) -> Any:
    """The gradient of causal self-attention's projection; sums, so that parts of a sequence add up."""
    weight = weight.detach().clone().requires_grad_(True)
    heads = [
        one.unflatten(-1, (_HEADS, -1)).transpose(1, 2)
        for one in torch.nn.functional.linear(x, weight).chunk(3, dim=-1)
    ]
    output = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    (output.to(torch.promote_types(output.dtype, torch.float32)) - 1).square().sum().backward()
    return weight.grad


def _hsdp(worker: Worker) -> ComputingRank:
    """Sharded within groups of ranks, replicated across them."""
    shape = (2, worker.ranks // 2)
    model = fully_shard(worker.model(), mesh=worker.mesh(shape, ("replicate", "shard")))
    found = sharded_beside_one(worker, model)
    placements = sorted({str(one.placements) for one in model.parameters()})
    return {**found, "facts": {"placements": placements, "mesh": list(shape)}}


REQUIREMENTS = {
    "tensor": Requirements(
        tolerance={"outputs": SAME, "gradients": SAME},
        facts={"split evenly": True, "same on every rank": True},
    ),
    "context": Requirements(tolerance={"gradients": RULE_T}),
    "hsdp": Requirements(
        tolerance={"gradients": SAME, "weights": SAME_AFTER_ADAMW},
        facts={"placements": ["(Replicate(), Shard(dim=0))"]},
    ),
}


def judge(subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge a step by that of one process."""
    return judge_computed(REQUIREMENTS[subject], expect, evidence)


CLAIMS = {"parallel": judge}
