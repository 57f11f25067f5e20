"""fsdp2: FSDP2 (`fully_shard`) against one process: float32, bfloat16, frozen 4-bit weights; checkpoints bit by bit."""

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import (
    SAME,
    SAME_AFTER_ADAMW,
    SEED,
    STEPS,
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
    train_beside_one,
    trained,
    weights,
    whole,
)
from validate.claims import Claim
from validate.judging import Finding

_RATE = 1e-2
_LORA = 8

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, claim: Claim) -> ComputingRank:
    """Measure one subject."""
    subjects: Mapping[str, Callable[[Worker], ComputingRank]] = {
        "float32": lambda _worker: sharded_beside_one(
            worker, fully_shard(worker.model(), mesh=worker.mesh())
        ),
        "bfloat16": _bfloat16,
        "4bit": _four_bit,
        "checkpoint": _checkpoint,
    }
    return subjects[claim.subject](worker)


def composable() -> Any:
    """The module that has `fully_shard` and its policies."""
    module = importlib.import_module("torch.distributed.fsdp")
    if hasattr(module, "fully_shard"):
        return module
    return importlib.import_module("torch.distributed._composable.fsdp")  # torch before 2.6


def fully_shard(model: Any, **options: Any) -> Any:
    """Shard each block and then the whole model, as trainers do."""
    shard = composable().fully_shard
    for block in model:
        shard(block, **options)
    return shard(model, **options)


def held(worker: Worker, parameters: Sequence[Any]) -> dict[str, object]:
    """Whether this rank holds a part of each parameter, and the parts of all ranks make the whole."""
    parts = sum(int(one.to_local().numel()) for one in parameters if hasattr(one, "to_local"))
    total = [None] * worker.ranks
    worker.distributed.all_gather_object(total, parts)
    return {
        "sharded": all(hasattr(one, "to_local") for one in parameters),
        "parts make the whole": sum(filter(None, total)) == sum(one.numel() for one in parameters),
        "share": round(parts / max(1, sum(one.numel() for one in parameters)), 3),
    }


def sharded_beside_one(worker: Worker, model: Any) -> ComputingRank:
    """Compare a sharded model's gradients and three steps of AdamW beside one process with all data."""
    comparisons = train_beside_one(worker, model, partial(worker.torch.optim.AdamW, lr=_RATE))
    return {"comparisons": comparisons, "facts": held(worker, list(model.parameters()))}


def _bfloat16(worker: Worker) -> ComputingRank:
    """Mixed precision. The reference is one process that takes each rank's data in turn and adds up in float32."""
    torch = worker.torch
    mixed = composable().MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    model = fully_shard(worker.model(), mesh=worker.mesh(), mp_policy=mixed)
    loss_of(model(worker.batch(worker.rank))).backward()
    alone, full = worker.model().to(torch.bfloat16), worker.model()
    loss_of(full(worker.everything())).backward()
    return {
        "comparisons": {
            "gradients": compared(
                gradients(model), mean_gradients(worker, alone), float32=gradients(full)
            )
        },
        "facts": {
            "gradients": sorted({str(one.grad.dtype) for one in model.parameters()}),
            **held(worker, list(model.parameters())),
        },
    }


def mean_gradients(worker: Worker, alone: Any) -> dict[str, Any]:
    """One process: the gradient of each rank's data in turn, their mean in float32."""
    total: dict[str, Any] = {}
    for rank_ in range(worker.ranks):
        alone.zero_grad()
        loss_of(alone(worker.batch(rank_).to(next(alone.parameters()).dtype))).backward()
        for name, gradient in gradients(alone).items():
            total[name] = total.get(name, 0) + gradient.float() / worker.ranks
    return total


def _four_bit(worker: Worker) -> ComputingRank:
    """QLoRA: frozen NF4 weights are sharded as they are stored, the adapters over them are trained."""
    torch = worker.torch
    alone, plain = _adapted(worker, quantised=True), _adapted(worker, quantised=False)
    model = copy.deepcopy(alone)
    fully_shard(model, mesh=worker.mesh())
    frozen = [one for one in model.parameters() if not one.requires_grad]
    stored = sorted({str(one.dtype) for one in frozen})
    bytes_here = sum(int(one.to_local().numel() * one.element_size()) for one in frozen)
    count = sum(block.base.in_features * block.base.out_features for block in plain)
    lying = held(worker, frozen)
    x = worker.batch(worker.rank)
    output = model(x)
    loss_of(output).backward()
    with torch.no_grad():
        wanted, unquantised = alone(x), plain(x)
    return {
        "comparisons": {
            "outputs": compared({"y": output}, {"y": wanted}, unquantised={"y": unquantised}),
            "gradients": compared(
                gradients(model),
                mean_gradients(worker, alone),
                unquantised=mean_gradients(worker, plain),
            ),
        },
        "facts": {
            **lying,
            "stored as": stored,
            "bytes a weight on this rank": round(bytes_here / count, 4),
            "frozen": len(frozen),
        },
    }


def _adapted(worker: Worker, *, quantised: bool) -> Any:
    """Two linear layers with LoRA beside each: bitsandbytes' NF4, stored in bfloat16 as FSDP needs it, or plain."""
    torch = worker.torch
    functional = torch.nn.functional

    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is known at run time alone
        def __init__(self) -> None:
            super().__init__()
            weight = 0.1 * torch.randn(WIDTH, WIDTH)
            self.base = _linear(worker, weight, quantised=quantised)
            self.a = torch.nn.Parameter(0.1 * torch.randn(_LORA, WIDTH, device=worker.device))
            self.b = torch.nn.Parameter(0.1 * torch.randn(WIDTH, _LORA, device=worker.device))

        def forward(self, x: Any) -> Any:
            return x + self.base(x) + functional.linear(functional.linear(x, self.a), self.b)

    torch.manual_seed(SEED)
    return torch.nn.Sequential(Block(), Block())


def _linear(worker: Worker, weight: Any, *, quantised: bool) -> Any:
    torch = worker.torch
    if quantised:
        layers = importlib.import_module("bitsandbytes.nn")
        layer = layers.Linear4bit(
            WIDTH,
            WIDTH,
            bias=False,
            compute_dtype=torch.float32,
            quant_type="nf4",
            quant_storage=torch.bfloat16,
        )
        layer.weight = layers.Params4bit(
            weight,
            requires_grad=False,
            quant_type="nf4",
            quant_storage=torch.bfloat16,
            module=layer,
        )
    else:
        layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer.to(worker.device)


def _checkpoint(worker: Worker) -> ComputingRank:
    """All ranks save after two steps and load into another model: the same bits, and the same third step."""
    torch, checkpoint = worker.torch, importlib.import_module("torch.distributed.checkpoint")
    states = importlib.import_module("torch.distributed.checkpoint.state_dict")
    batches = [worker.batch(worker.rank, step) for step in range(STEPS)]

    def made(seed: int) -> tuple[Any, Any]:
        model = fully_shard(worker.model(seed), mesh=worker.mesh())
        return model, torch.optim.AdamW(model.parameters(), lr=_RATE)

    def state(model: Any, optimizer: Any) -> dict[str, Any]:
        of_model, of_optimizer = states.get_state_dict(model, optimizer)
        return {"model": of_model, "optimizer": of_optimizer}

    model, optimizer = made(SEED)
    trained(model, optimizer, batches[:2])
    checkpoint.save(state(model, optimizer), checkpoint_id=str(worker.folder / "checkpoint"))
    saved, moments = weights(model), _moments(optimizer)
    trained(model, optimizer, batches[2:])
    again, its_optimizer = made(SEED + 1)
    trained(again, its_optimizer, batches[2:])
    differed = not _equal(weights(again), saved)
    loaded = state(again, its_optimizer)
    checkpoint.load(loaded, checkpoint_id=str(worker.folder / "checkpoint"))
    states.set_state_dict(
        again, its_optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
    restored = _equal(weights(again), saved), _equal(_moments(its_optimizer), moments)
    trained(again, its_optimizer, batches[2:])
    return {
        "facts": {
            "differed before": differed,
            "same weights": restored[0],
            "same moments": restored[1],
            "moments": len(moments),
            "same third step": _equal(weights(again), weights(model)),
            "files": len(list((worker.folder / "checkpoint").glob("*.distcp"))),
        }
    }


def _moments(optimizer: Any) -> dict[str, Any]:
    """AdamW's moments in the order of its parameters."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    return {
        f"{index} {name}": whole(optimizer.state[one][name])
        for index, one in enumerate(parameters)
        for name in ("exp_avg", "exp_avg_sq")
    }


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return set(one) == set(other) and all(bool((one[name] == other[name]).all()) for name in one)


SHARDED = {"sharded": True, "parts make the whole": True}
REQUIREMENTS = {
    "float32": Requirements(
        tolerance={"gradients": SAME, "weights": SAME_AFTER_ADAMW},
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
    """Judge a sharded model by one process, or a checkpoint by what was saved."""
    return judge_computed(REQUIREMENTS[subject], expect, evidence)


CLAIMS = {"fsdp2": judge}
