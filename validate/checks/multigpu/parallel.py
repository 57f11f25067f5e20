"""parallel: tensor parallelism, context parallelism and HSDP must compute what one process does."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import (
    ADAMW_TOLERANCE,
    NEXT_STEP,
    ROUNDING_TOLERANCE,
    SEED,
    WIDTH,
    ComputingRank,
    RanksEvidence,
    RanksExpect,
    Requirements,
    Worker,
    compare_tensors,
    compute_loss,
    gather_gradients,
    judge_requirements,
    relative_error,
)
from validate.checks.multigpu.fsdp import compare_sharded_training, shard_model
from validate.claims import Claim
from validate.judging import RULE_T, Finding

_HEADS = 2
_TOKENS_A_RANK = 128
"""The length of the part of a sequence that each rank has in context parallelism."""

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, claim: Claim) -> ComputingRank:
    """Return what one rank measures for a claim's subject."""
    measures: Mapping[str, Callable[[Worker], ComputingRank]] = {
        "tensor": measure_tensor_parallelism,
        "context": measure_context_parallelism,
        "hsdp": measure_hsdp,
    }
    return measures[claim.subject](worker)


def measure_tensor_parallelism(worker: Worker) -> ComputingRank:
    """Compare a step of tensor parallelism, on the same batch on every rank, with one process.

    Each rank has a part of the hidden features of each block: a part of the outputs of its first
    layer (split by columns), and so of the inputs of its second (split by rows). The ranks add up
    what their parts of the second layer give. The control of the outputs is what the first rank
    would compute without adding up (`compute_first_part`).
    """
    parallel = importlib.import_module("torch.distributed.tensor.parallel")
    model = worker.make_model()
    single_model = worker.make_model()
    mesh = worker.make_mesh()
    plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    for block in model:
        parallel.parallelize_module(block, mesh, plan)

    batch = worker.make_batch(0)
    output = model(batch)
    single_output = single_model(batch)
    compute_loss(output).backward()
    compute_loss(single_output).backward()

    # Ranks that all hold whole weights would give the same outputs, so look at the parts.
    is_split_evenly = True
    for block in model:
        for weight in (block.up.weight, block.down.weight):
            local_count = int(weight.to_local().numel())
            if local_count * worker.world_size != weight.numel():
                is_split_evenly = False

    rank_share = 1 / worker.world_size
    first_part = compute_first_part(worker.torch, single_model, batch, share=rank_share)
    outputs = compare_tensors(
        {"y": output}, {"y": single_output}, {"of one rank": {"y": first_part}}
    )
    gradients = compare_tensors(gather_gradients(model), gather_gradients(single_model))
    return {
        "comparisons": {"outputs": outputs, "gradients": gradients},
        "facts": {
            "split evenly": is_split_evenly,
            "same on every rank": worker.are_same_on_all_ranks([output]),
        },
    }


def compute_first_part(torch: Any, model: Any, batch: Any, share: float) -> Any:
    """Compute the model with only the first part of each block's hidden features.

    This is the wrong result that the first rank would get if the ranks did not add up their parts.

    share: the size of that part, between 0 and 1.
    """
    states = batch
    for block in model:
        hidden = torch.nn.functional.gelu(block.up(block.norm(states)))
        width = int(share * hidden.shape[-1])
        product = hidden[:, :width] @ block.down.weight[:, :width].T
        states = states + product + block.down.bias
    return states


def measure_context_parallelism(worker: Worker) -> ComputingRank:
    """Compare ring attention over a sequence that is split over the ranks with one process.

    The ranks' gradients of a weight, each from its part of the sequence, must add up to that of the
    whole sequence. Everything runs in bfloat16, because flash attention needs it. The reference is
    float64 on the CPU, and the plain error is that of one process in bfloat16. In the control each
    part of the sequence attends only to itself, as if the ranks had exchanged nothing.
    """
    torch = worker.torch
    attention = importlib.import_module("torch.nn.attention")
    experimental = importlib.import_module("torch.distributed.tensor.experimental")

    # Every rank draws the whole sequence [2, length, WIDTH] and the same weight.
    generator = torch.Generator().manual_seed(SEED)
    length = _TOKENS_A_RANK * worker.world_size
    sequence = torch.randn(2, length, WIDTH, generator=generator)
    weight = torch.randn(3 * WIDTH, WIDTH, generator=generator) / WIDTH**0.5
    sequence = sequence.to(worker.device, torch.bfloat16)
    weight = weight.to(worker.device, torch.bfloat16)
    exact = compute_attention_gradient(torch, sequence.cpu().double(), weight.cpu().double())

    # Compute the gradient three times: in this process over the whole sequence; over each rank's
    # part by itself; and over this rank's part, together with the other ranks.
    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
        plain = compute_attention_gradient(torch, sequence, weight)
        separate_gradients = []
        for part in sequence.chunk(worker.world_size, dim=1):
            separate_gradients.append(compute_attention_gradient(torch, part, weight))
        # context_parallel cuts the buffer down to this rank's part, in place.
        local_part = sequence.clone()
        mesh = worker.make_mesh()
        with experimental.context_parallel(mesh, buffers=[local_part], buffer_seq_dims=[1]):
            local_length = local_part.shape[1]
            local_gradient = compute_attention_gradient(torch, local_part, weight)

    # Add up in float32, so that the sums add no error of bfloat16.
    total = local_gradient.float()
    worker.distributed.all_reduce(total)
    separate_total = sum(gradient.float() for gradient in separate_gradients)
    comparison = compare_tensors(
        {"w": total}, {"w": exact}, {"not exchanged": {"w": separate_total}}
    )
    comparison["plain_error"] = relative_error({"w": plain}, {"w": exact})
    return {
        "comparisons": {"gradients": comparison},
        "facts": {"length on this rank": local_length, "length": length},
    }


def compute_attention_gradient(torch: Any, sequence: Any, weight: Any) -> Any:
    """Return the gradient of the weight that projects a sequence to causal self-attention's inputs.

    The sequence is [rows, tokens, WIDTH]. The weight and the result are [3 * WIDTH, WIDTH], for
    query, key and value. The loss is the sum of (attention's output - 1)^2: unlike a mean, the sums
    over the parts of a sequence add up to that of the whole, and so do the gradients.
    """
    functional = torch.nn.functional
    weight = weight.detach().clone().requires_grad_(True)
    heads = []
    for projection in functional.linear(sequence, weight).chunk(3, dim=-1):
        heads.append(projection.unflatten(-1, (_HEADS, -1)).transpose(1, 2))
    query, key, value = heads
    output = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    # The loss in float32, or in float64 for the reference.
    wide_output = output.to(torch.promote_types(output.dtype, torch.float32))
    (wide_output - 1).square().sum().backward()
    return weight.grad


def measure_hsdp(worker: Worker) -> ComputingRank:
    """Compare HSDP with one process: two groups of ranks, each with all shards of the model."""
    shape = (2, worker.world_size // 2)
    mesh = worker.make_mesh(shape, ("replicate", "shard"))
    model = shard_model(worker.make_model(), mesh=mesh)
    comparisons = compare_sharded_training(worker, model)["comparisons"]
    placements = sorted({str(parameter.placements) for parameter in model.parameters()})
    return {
        "comparisons": comparisons,
        "facts": {"placements": placements, "mesh": list(shape)},
    }


REQUIREMENTS = {
    "tensor": Requirements(
        tolerance={"outputs": ROUNDING_TOLERANCE, "gradients": ROUNDING_TOLERANCE},
        facts={"split evenly": True, "same on every rank": True},
    ),
    "context": Requirements(tolerance={"gradients": RULE_T}),
    "hsdp": Requirements(
        tolerance={"gradients": ROUNDING_TOLERANCE, "weights": ADAMW_TOLERANCE},
        facts={"placements": ["(Replicate(), Shard(dim=0))"]},
    ),
}


def judge(subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge that a step in parallel is the step of one process."""
    return judge_requirements(REQUIREMENTS[subject], expect, evidence)


CLAIMS = {"parallel": judge}
NEXT_STEPS = {"parallel": NEXT_STEP}
