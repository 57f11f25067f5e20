"""fsdp2: FSDP2 (`fully_shard`) must train as one process does, and its checkpoints must be exact.

Four subjects: float32, bfloat16 mixed precision, frozen 4-bit weights with adapters (QLoRA), and a
sharded checkpoint.
"""

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import (
    ADAMW_TOLERANCE,
    NEXT_STEP,
    ROUNDING_TOLERANCE,
    SEED,
    STEPS,
    WIDTH,
    ComputingRank,
    RanksEvidence,
    RanksExpect,
    Requirements,
    Worker,
    compare_tensors,
    compare_training,
    compute_loss,
    gather_gradients,
    gather_tensor,
    gather_weights,
    judge_requirements,
    train,
)
from validate.claims import Claim
from validate.judging import Finding

LEARNING_RATE = 1e-2
_LORA_RANK = 8

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, claim: Claim) -> ComputingRank:
    """Return what one rank measures for a claim's subject."""
    measures: Mapping[str, Callable[[Worker], ComputingRank]] = {
        "float32": measure_float32,
        "bfloat16": measure_bfloat16,
        "4bit": measure_four_bit,
        "checkpoint": measure_checkpoint,
    }
    return measures[claim.subject](worker)


def import_fsdp2() -> Any:
    """Return the module that has `fully_shard` and its policies: torch moved it in 2.6."""
    module = importlib.import_module("torch.distributed.fsdp")
    if hasattr(module, "fully_shard"):
        return module
    return importlib.import_module("torch.distributed._composable.fsdp")


def shard_model(model: Any, **options: Any) -> Any:
    """Shard each block and then the whole model with `fully_shard`, as trainers do.

    The model is changed in place and returned. `options` are those of `fully_shard`.
    """
    fully_shard = import_fsdp2().fully_shard
    for block in model:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def describe_sharding(worker: Worker, parameters: Sequence[Any]) -> dict[str, object]:
    """Return facts on how a model's parameters are split over the ranks.

    "sharded": every parameter is. "parts make the whole": the ranks' parts together have as many
    numbers as the whole. "share": the part of all numbers that lies on this rank. All ranks must
    call this together.
    """
    # Sharded parameters are DTensors: `to_local` returns the part on this rank.
    is_sharded = [hasattr(parameter, "to_local") for parameter in parameters]
    local_count = 0
    for parameter in parameters:
        if hasattr(parameter, "to_local"):
            local_count += int(parameter.to_local().numel())
    whole_count = sum(parameter.numel() for parameter in parameters)

    local_counts: list[Any] = [None] * worker.world_size
    worker.distributed.all_gather_object(local_counts, local_count)
    return {
        "sharded": all(is_sharded),
        "parts make the whole": sum(local_counts) == whole_count,
        "share": round(local_count / max(1, whole_count), 3),
    }


def measure_float32(worker: Worker) -> ComputingRank:
    """Compare a model that is sharded over all ranks with one process that has all data."""
    model = shard_model(worker.make_model(), mesh=worker.make_mesh())
    return compare_sharded_training(worker, model)


def compare_sharded_training(worker: Worker, model: Any) -> ComputingRank:
    """Compare a sharded model's training by AdamW with one process that has all data."""
    adamw = partial(worker.torch.optim.AdamW, lr=LEARNING_RATE)
    comparisons = compare_training(worker, model, adamw)
    return {
        "comparisons": comparisons,
        "facts": describe_sharding(worker, list(model.parameters())),
    }


def measure_bfloat16(worker: Worker) -> ComputingRank:
    """Take the gradients of one step in FSDP2's mixed precision, and compare them with one process.

    Mixed precision multiplies in bfloat16, and adds the ranks' gradients up in float32. The right
    gradients are those of a bfloat16 model in one process, which takes each rank's data in turn.
    The control, which must differ, is a float32 model. The fact "gradients" lists the dtypes of the
    sharded model's gradients.
    """
    torch = worker.torch
    policy = import_fsdp2().MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    model = shard_model(worker.make_model(), mesh=worker.make_mesh(), mp_policy=policy)
    compute_loss(model(worker.make_batch(worker.rank))).backward()

    # The same weights in one process, on the data of all ranks.
    bfloat16_model = worker.make_model().to(torch.bfloat16)
    float32_model = worker.make_model()
    compute_loss(float32_model(worker.make_batch_of_all_ranks())).backward()

    comparison = compare_tensors(
        gather_gradients(model),
        average_gradients_of_ranks(worker, bfloat16_model),
        {"float32": gather_gradients(float32_model)},
    )
    gradient_dtypes = sorted({str(parameter.grad.dtype) for parameter in model.parameters()})
    sharding = describe_sharding(worker, list(model.parameters()))
    return {
        "comparisons": {"gradients": comparison},
        "facts": {"gradients": gradient_dtypes, **sharding},
    }


def average_gradients_of_ranks(worker: Worker, model: Any) -> dict[str, Any]:
    """Return the mean, in float32, of the gradients of every rank's data, computed in this process.

    The batches are converted to the dtype of the model's weights.
    """
    dtype = next(model.parameters()).dtype
    mean_gradients: dict[str, Any] = {}
    for other_rank in range(worker.world_size):
        model.zero_grad()
        compute_loss(model(worker.make_batch(other_rank).to(dtype))).backward()
        for name, gradient in gather_gradients(model).items():
            share = gradient.float() / worker.world_size
            mean_gradients[name] = mean_gradients.get(name, 0) + share
    return mean_gradients


def measure_four_bit(worker: Worker) -> ComputingRank:
    """Compare a sharded QLoRA model, outputs and gradients of its adapters, with one process.

    The frozen NF4 weights are sharded as they are stored; only the adapters are trained. The
    control is a model of the same weights, not quantised.
    """
    single_model = make_lora_model(worker, quantised=True)
    unquantised_model = make_lora_model(worker, quantised=False)
    model = copy.deepcopy(single_model)
    shard_model(model, mesh=worker.make_mesh())

    # Count bytes, because NF4 packs several weights into one number.
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    stored_dtypes = sorted({str(parameter.dtype) for parameter in frozen})
    local_bytes = 0
    for parameter in frozen:
        local_bytes += int(parameter.to_local().numel() * parameter.element_size())
    weight_count = 0
    for block in unquantised_model:
        weight_count += block.base.in_features * block.base.out_features
    sharding = describe_sharding(worker, frozen)

    batch = worker.make_batch(worker.rank)
    output = model(batch)
    compute_loss(output).backward()
    with worker.torch.no_grad():
        single_output = single_model(batch)
        unquantised_output = unquantised_model(batch)

    outputs = compare_tensors(
        {"y": output}, {"y": single_output}, {"unquantised": {"y": unquantised_output}}
    )
    gradients = compare_tensors(
        gather_gradients(model),
        average_gradients_of_ranks(worker, single_model),
        {"unquantised": average_gradients_of_ranks(worker, unquantised_model)},
    )
    return {
        "comparisons": {"outputs": outputs, "gradients": gradients},
        "facts": {
            **sharding,
            "stored as": stored_dtypes,
            "bytes a weight on this rank": round(local_bytes / weight_count, 4),
            "frozen": len(frozen),
        },
    }


def make_lora_model(worker: Worker, *, quantised: bool) -> Any:
    """Return two residual blocks, each a frozen linear layer with LoRA matrices that are trained.

    `quantised`: the frozen weights are bitsandbytes' NF4 instead of float32. They are made from the
    same random numbers as without it: both kinds of layer draw as many, for a weight that
    `make_frozen_linear` then replaces.
    """
    torch = worker.torch
    linear = torch.nn.functional.linear

    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]  # imported late
        def __init__(self) -> None:
            super().__init__()
            weight = 0.1 * torch.randn(WIDTH, WIDTH)
            self.base = make_frozen_linear(worker, weight, quantised=quantised)
            lora_a = 0.1 * torch.randn(_LORA_RANK, WIDTH, device=worker.device)
            self.a = torch.nn.Parameter(lora_a)
            lora_b = 0.1 * torch.randn(WIDTH, _LORA_RANK, device=worker.device)
            self.b = torch.nn.Parameter(lora_b)

        def forward(self, x: Any) -> Any:
            return x + self.base(x) + linear(linear(x, self.a), self.b)

    torch.manual_seed(SEED)
    return torch.nn.Sequential(Block(), Block())


def make_frozen_linear(worker: Worker, weight: Any, *, quantised: bool) -> Any:
    """Return a linear layer without bias on the worker's device, with this weight, not trained.

    A quantised layer holds the weight as NF4, packed into bfloat16 numbers as FSDP needs it. It is
    quantised when it is moved to the device.
    """
    torch = worker.torch
    if not quantised:
        layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        return layer.to(worker.device)

    bnb = importlib.import_module("bitsandbytes.nn")
    quantisation = {"quant_type": "nf4", "quant_storage": torch.bfloat16}
    layer = bnb.Linear4bit(WIDTH, WIDTH, bias=False, compute_dtype=torch.float32, **quantisation)
    layer.weight = bnb.Params4bit(weight, requires_grad=False, module=layer, **quantisation)
    return layer.to(worker.device)


def measure_checkpoint(worker: Worker) -> ComputingRank:
    """Save a sharded model and its AdamW state, load both into another model, and compare them.

    The first model takes two steps, is saved, and takes a third step. A second model with other
    weights loads the checkpoint: it must have the saved bits, and its third step must give the
    first model's bits. "differed before" is the control: before loading, the weights were others.
    """
    checkpoint = importlib.import_module("torch.distributed.checkpoint")
    state_dict = importlib.import_module("torch.distributed.checkpoint.state_dict")
    folder = worker.folder / "checkpoint"
    batches = [worker.make_batch(worker.rank, step) for step in range(STEPS)]

    model, optimizer = make_sharded_trainee(worker, SEED)
    train(model, optimizer, batches[:2])
    checkpoint.save(collect_state(model, optimizer), checkpoint_id=str(folder))
    saved_weights = gather_weights(model)
    saved_moments = gather_moments(optimizer)
    train(model, optimizer, batches[2:])

    # Train the other model once, so that its optimizer has moments for loading to overwrite.
    other_model, other_optimizer = make_sharded_trainee(worker, SEED + 1)
    train(other_model, other_optimizer, batches[2:])
    differed_before = not are_equal(gather_weights(other_model), saved_weights)

    state = collect_state(other_model, other_optimizer)
    checkpoint.load(state, checkpoint_id=str(folder))
    state_dict.set_state_dict(
        other_model,
        other_optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    has_same_weights = are_equal(gather_weights(other_model), saved_weights)
    has_same_moments = are_equal(gather_moments(other_optimizer), saved_moments)
    train(other_model, other_optimizer, batches[2:])
    has_same_third_step = are_equal(gather_weights(other_model), gather_weights(model))
    return {
        "facts": {
            "differed before": differed_before,
            "same weights": has_same_weights,
            "same moments": has_same_moments,
            "moments": len(saved_moments),
            "same third step": has_same_third_step,
            "files": len(list(folder.glob("*.distcp"))),
        }
    }


def make_sharded_trainee(worker: Worker, seed: int) -> tuple[Any, Any]:
    """Return a model that is sharded over all ranks, and AdamW for its parameters."""
    model = shard_model(worker.make_model(seed), mesh=worker.make_mesh())
    return model, worker.torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def collect_state(model: Any, optimizer: Any) -> dict[str, Any]:
    """Return the sharded state of a model and its optimizer, as a checkpoint stores it."""
    state_dict = importlib.import_module("torch.distributed.checkpoint.state_dict")
    model_state, optimizer_state = state_dict.get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def gather_moments(optimizer: Any) -> dict[str, Any]:
    """Return AdamW's two moments of every parameter, as whole tensors.

    The names are the parameter's number and the moment's name: `0 exp_avg`, `0 exp_avg_sq`.
    """
    parameters = []
    for group in optimizer.param_groups:
        parameters.extend(group["params"])

    moments = {}
    for index, parameter in enumerate(parameters):
        for name in ("exp_avg", "exp_avg_sq"):
            moments[f"{index} {name}"] = gather_tensor(optimizer.state[parameter][name])
    return moments


def are_equal(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether two mappings have the same names, and equal values in each tensor."""
    if set(tensors) != set(others):
        return False
    for name, tensor in tensors.items():
        if not bool((tensor == others[name]).all()):
            return False
    return True


SHARDED = {"sharded": True, "parts make the whole": True}
REQUIREMENTS = {
    "float32": Requirements(
        tolerance={"gradients": ROUNDING_TOLERANCE, "weights": ADAMW_TOLERANCE},
        facts=SHARDED,
    ),
    "bfloat16": Requirements(
        tolerance={"gradients": 1e-5},
        facts={**SHARDED, "gradients": ["torch.float32"]},
    ),
    "4bit": Requirements(
        tolerance={"outputs": 1e-5, "gradients": 1e-5},
        facts={**SHARDED, "stored as": ["torch.bfloat16"], "frozen": 2},
    ),
    "checkpoint": Requirements(
        facts={
            "differed before": True,
            "same weights": True,
            "same moments": True,
            "same third step": True,
            "moments": 24,
        },
    ),
}


def judge(subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge that a sharded model trains as one process, or that a checkpoint is exact."""
    return judge_requirements(REQUIREMENTS[subject], expect, evidence)


CLAIMS = {"fsdp2": judge}
NEXT_STEPS = {"fsdp2": NEXT_STEP}
