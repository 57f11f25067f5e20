"""scaling: how many tokens a second all GPUs train together, compared with one of them.

Model and batch of a rank are those of `step` on one GPU (validate/checks/gpu/step.py), so the work
grows with the number of ranks (weak scaling). The first rank trains by itself while the others
wait. Then all ranks train together, each on tokens of its own: by DDP, by FSDP2, or by DeepSpeed's
ZeRO 3, which unlike the other two keeps a float32 copy of the weights.

The figures are reported, and have no floor: no runs are recorded from which one could follow. A
claim fails if a rank did not train: it took not all steps, its loss does not fall, or after
training it has another loss than the first rank on the same tokens. With DDP, that is so if
gradients were not exchanged. FSDP2 and ZeRO 3 put one model together from the parts of all ranks,
so there the claims of `fsdp2` and `multigpu-examples` find such a fault, and this one does not.
"""

import gc
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict

from validate.checks import Settings
from validate.checks.gpu import step
from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import NEXT_STEP, Rank, RanksExpect, Worker, judge_ranks
from validate.checks.multigpu.fsdp import import_fsdp2
from validate.claims import Claim
from validate.harness import seeding, timing
from validate.harness.timing import Conditions, Watch
from validate.judging import Finding, Status, cause, failed, is_finite, joined, unproven
from validate.next_steps import calm_gpu

SETTINGS = Settings(runs_alone=True)

STEPS = 12
"""Training steps of each way, of which `step` does not time the first."""
_IDLE_SECONDS = 1.0
"""NVML's utilization is an average over up to this time. Work before it must not count as that of
other programs."""
_DIFFERENCE = 1e-4
"""How far the losses of two ranks on the same tokens may be from each other. They have the same
weights, and the same kernels compute them."""
_ALONE = "alone"
"""The subject under which the first rank trains by itself."""
_LINKS = {"nvlink": " over NVLink", "pcie": " over PCIe", "apart": " through the host's memory"}
"""The slowest link between two of the host's GPUs -> how a reason calls it."""

Launch = Callable[[Sequence[Claim]], Iterator[tuple[str, Mapping[str, Any]]]]


class ScalingExpect(RanksExpect):
    """What a claim about scaling expects."""

    rows: int  # of a rank's batch
    link: str  # one of _LINKS; empty: not known, or there are two nodes


class ScalingRank(Rank, total=False):
    """What a rank reports of its training."""

    run: step.Run
    tokens: int  # of a step, on this rank
    common_loss: float  # after training, on the first rank's tokens
    conditions: Conditions  # what may have disturbed the times; on a GPU


class ScalingEvidence(TypedDict):
    """The reports of the first rank by itself, and of all ranks together."""

    alone: ScalingRank
    ranks: Sequence[ScalingRank]


_launch_ranks = partial(_launch.measure, __name__)


def measure(
    claims: Sequence[Claim], launch: Launch = _launch_ranks
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each claim's subject, and what the ranks measured for it (ScalingEvidence).

    Ranks are processes that train together, one on each GPU. For comparison, the evidence also has
    what the first rank measured as it trained by itself (`alone`).

    `launch` starts the ranks, and yields their evidence of each claim that it gets. It raises
    RanksFailedError if one of them fails.
    """
    # Put another claim first, in which only the first rank trains (`rank`). The others wait for it
    # before they begin with the next claim, so it has the machine to itself.
    claim_alone = replace(claims[0], subject=_ALONE)
    alone = {}
    for subject, evidence in launch([claim_alone, *claims]):
        if subject == _ALONE:
            alone = evidence["ranks"][0]
        else:
            yield subject, {**evidence, "alone": alone}


def rank(worker: Worker, claim: Claim) -> ScalingRank:
    """Train as one rank in the way that a claim's subject names, and return what was measured.

    A rank is one of the processes that train together, each on its GPU. The result has the times
    and, on a GPU, what may have disturbed them (`conditions`).
    """
    # If the first rank trains by itself, the others have nothing to do.
    if claim.subject == _ALONE and worker.rank > 0:
        return {}
    # What is left of the claim before must not count in this one's peak of memory.
    gc.collect()
    if worker.device.type == "cpu":
        trained, _reading = train(worker, claim, dict)
        return trained
    worker.torch.cuda.empty_cache()
    # NVML's load of a GPU is an average of the last second. Our own work must not count in it.
    time.sleep(_IDLE_SECONDS)
    with timing.watch_gpu(worker.torch) as (watch, conditions):
        trained, reading = train(worker, claim, watch)
    return {**trained, "conditions": {**conditions, "under_load": [reading]}}


def train(worker: Worker, claim: Claim, watch: Watch) -> tuple[ScalingRank, Mapping[str, int]]:
    """Train a new model on this rank's tokens; return what was measured, and a reading of the GPU.

    A rank is one of the processes that train together, each on its GPU. The claim's subject says in
    which way: `ddp`, for example. `watch` reads the GPU while it still works.
    """
    torch, device = worker.torch, worker.device.type
    # With one seed, the model is the same on each rank. The tokens are not.
    torch.manual_seed(seeding.FIXED_SEED)
    tokens_of_all = step.draw_tokens(torch, device, claim.expect["rows"] * worker.world_size)
    batches = tokens_of_all.chunk(worker.world_size)
    tokens = batches[worker.rank]
    model, optimizer = WAYS[claim.subject](worker, step.make_llama(torch, device))
    run, reading = step.run_steps(torch, model, optimizer, tokens, STEPS, watch)
    # All ranks compute a loss on the first rank's tokens. If training kept their models equal, so
    # are these losses.
    with torch.no_grad():
        common_loss = float(model(input_ids=batches[0], labels=batches[0]).loss)
    return {"run": run, "tokens": tokens.numel(), "common_loss": common_loss}, reading


def train_alone(worker: Worker, model: Any) -> tuple[Any, Any]:
    """Return a model and the optimizer of `step` for it, fused AdamW."""
    learning_rate = step.VARIANTS[step.EAGER].learning_rate
    return model, worker.torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)


def train_by_ddp(worker: Worker, model: Any) -> tuple[Any, Any]:
    """Return a model in DDP, all of which is on each rank, and its optimizer."""
    ddp = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    return train_alone(worker, ddp(model))


def train_by_fsdp2(worker: Worker, model: Any) -> tuple[Any, Any]:
    """Return a model each layer of which is sharded by FSDP2, and its optimizer."""
    fully_shard = import_fsdp2().fully_shard
    mesh = worker.make_mesh()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return train_alone(worker, fully_shard(model, mesh=mesh))


def train_by_zero3(worker: Worker, model: Any) -> tuple[Any, Any]:
    """Return DeepSpeed's engine around a model, twice: it is the optimizer as well."""
    config = {
        # DeepSpeed demands it, and uses it only for its log.
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
    }
    model, optimizer = train_alone(worker, model)
    deepspeed = importlib.import_module("deepspeed")
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    return engine, engine


WAYS: Mapping[str, Callable[[Worker, Any], tuple[Any, Any]]] = {
    _ALONE: train_alone,
    "ddp": train_by_ddp,
    "fsdp2": train_by_fsdp2,
    "zero3": train_by_zero3,
}
"""Subject -> a function from a new model to what each rank trains, and its optimizer."""


def judge(_subject: str, expect: ScalingExpect, evidence: ScalingEvidence) -> Finding:
    """Judge that all ranks trained, and report how fast they were, compared with one.

    FAIL: a rank did not train, or differs from the first one. UNPROVEN: all trained, but something
    disturbed the times, on one of the GPUs. The figures themselves have no bound.
    """
    alone, ranks = evidence["alone"], evidence["ranks"]
    if "error" in alone:
        return failed(f"the training on one GPU by itself fails: {cause(alone['error'])}")
    for problem in find_training_problems(alone, alone):
        return failed(f"in the training on one GPU by itself, {problem}")
    finding = judge_ranks(
        expect,
        ranks,
        lambda rank: find_training_problems(rank, ranks[0]),
        lambda _ranks: summarise(expect, evidence),
    )
    # Times of a rehearsal on a CPU mean nothing.
    if finding.status is not Status.PASS or expect["device"] == "cpu":
        return finding

    disturbances: list[str] = []
    for rank in (alone, *ranks):
        disturbances += timing.disturbances(rank["conditions"], rank["run"]["time"])
    if disturbances:
        # Two GPUs may have the same disturbance.
        different = list(dict.fromkeys(disturbances))
        reason = joined(different)
        return unproven(f"{reason} (measured: {finding.reason})", calm_gpu(reason))
    return finding


def find_training_problems(rank: ScalingRank, first_rank: ScalingRank) -> Iterator[str]:
    """Yield why a rank did not train, or not as the first rank did."""
    losses = rank["run"]["losses"] if "run" in rank else []
    if len(losses) != STEPS:
        yield f"it took {len(losses)} of {STEPS} steps"
        return
    yield from step.find_learning_problems(losses)
    loss, first_loss = rank["common_loss"], first_rank["common_loss"]
    # A loss that is not finite is recorded as text.
    if not is_finite(first_loss) or not is_finite(loss) or abs(loss - first_loss) > _DIFFERENCE:
        yield f"after training its loss on rank 0's tokens is {loss}, and rank 0's is {first_loss}"


def summarise(expect: ScalingExpect, evidence: ScalingEvidence) -> str:
    """Return one line of figures: speed, memory and loss.

    For example, `2 GPUs over NVLink: 103,600 tokens/s, 1.93 times one GPU's (96%), 49.4 GB on each,
    loss 6.256 after 12 steps`. The speed is compared with that of one GPU that trained alone. The
    memory is the most that a rank needed; the loss is that of the first rank.
    """
    ranks = evidence["ranks"]
    speed = tokens_a_second(ranks)
    times_one = speed / tokens_a_second([evidence["alone"]])
    connection = _LINKS.get(expect["link"], "")
    # Nodes have no link of their GPUs: they talk over the network.
    if "nodes" in expect:
        connection = f" on {expect['nodes']} nodes"
    gigabytes = max(rank["run"]["peak"] for rank in ranks) / 1e9
    losses = ranks[0]["run"]["losses"]
    return (
        f"{len(ranks)} GPUs{connection}: {speed:,.0f} tokens/s, {times_one:.2f} times one GPU's "
        f"({times_one / len(ranks):.0%}), {gigabytes:.1f} GB on each, "
        f"loss {losses[-1]:.3f} after {len(losses)} steps"
    )


def tokens_a_second(ranks: Sequence[ScalingRank]) -> float:
    """Return how many tokens these ranks train in a second together, as fast as the slowest."""
    seconds = max(rank["run"]["time"]["seconds"] for rank in ranks)
    return sum(rank["tokens"] for rank in ranks) / seconds


CLAIMS = {"scaling": judge}
NEXT_STEPS = {"scaling": NEXT_STEP}
