"""zero: DeepSpeed's ZeRO 1, 2 and 3 have the losses of one process, and its weights after three steps."""

import importlib
import os
from functools import partial
from pathlib import Path

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import (
    BATCH,
    SAME,
    SAME_AFTER_ADAMW,
    STEPS,
    ComputingRank,
    RanksEvidence,
    RanksExpect,
    Requirements,
    Worker,
    compared,
    judge_computed,
    loss_of,
    trained,
    weights,
)
from validate.claims import Claim
from validate.judging import Finding

_RATE = 1e-2
STAGES = {"stage-1": 1, "stage-2": 2, "stage-3": 3}
"""Subject -> stage of ZeRO."""

measure = partial(_launch.measure, __name__)


def environment(_folder: Path) -> dict[str, str]:
    """DeepSpeed looks for an accelerator when it is imported: without GPUs it is told to take the CPU."""
    cuda = importlib.import_module("torch").cuda.is_available()
    return {} if cuda else {"DS_ACCELERATOR": "cpu"}


class ZeroRank(ComputingRank):
    """A rank's results, and which DeepSpeed gave them."""

    deepspeed: str
    accelerator: str


def rank(worker: Worker, claim: Claim) -> ZeroRank:
    """Train with DeepSpeed, alone with all data, and alone with this rank's data (the control)."""
    torch, deepspeed = worker.torch, importlib.import_module("deepspeed")
    alone, separate, model = worker.model(), worker.model(), worker.model()
    before = weights(alone)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=_RATE),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "zero_optimization": {"stage": STAGES[claim.subject]},
            "zero_allow_untested_optimizer": True,
        },
    )
    mine = [worker.batch(worker.rank, step) for step in range(STEPS)]
    losses = []
    for batch in mine:
        loss = loss_of(engine(batch))
        engine.backward(loss)
        with torch.no_grad():  # gloo refuses to gather into views that autograd knows
            engine.step()
        losses.append(float(loss.detach()))
    optimizers = [torch.optim.AdamW(one.parameters(), lr=_RATE) for one in (alone, separate)]
    wanted = trained(alone, optimizers[0], [worker.everything(step) for step in range(STEPS)])
    trained(separate, optimizers[1], mine)
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        found = weights(engine.module)
    total = torch.tensor(losses, device=worker.device, dtype=torch.float64)
    worker.distributed.all_reduce(total)
    return {
        "comparisons": {
            "losses": compared({"loss": total / worker.ranks}, {"loss": torch.tensor(wanted, dtype=torch.float64)}),
            "weights": compared(found, weights(alone), untrained=before, not_exchanged=weights(separate)),
        },
        "facts": {
            "stage": int(engine.zero_optimization_stage()),
            "weights partitioned": all(hasattr(one, "ds_id") for one in engine.module.parameters()),
            "same on every rank": worker.same_everywhere(list(found.values())),
        },
        "deepspeed": str(deepspeed.__version__),
        "accelerator": os.environ.get("DS_ACCELERATOR", "found by itself"),
    }


def judge(subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge losses and weights by those of one process, and that DeepSpeed partitioned what its stage says."""
    stage = STAGES[subject]
    requirements = Requirements(
        tolerance={"losses": SAME, "weights": SAME_AFTER_ADAMW},
        facts={"stage": stage, "weights partitioned": stage == 3, "same on every rank": True},
    )
    return judge_computed(requirements, expect, evidence)


CLAIMS = {"zero": judge}
