"""ddp: DistributedDataParallel, with other data on each rank, has the gradients of one process with all data."""

import importlib
from functools import partial

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import (
    SAME,
    ComputingRank,
    RanksEvidence,
    RanksExpect,
    Requirements,
    Worker,
    gradients,
    judge_computed,
    train_beside_one,
    weights,
)
from validate.claims import Claim
from validate.judging import Finding

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, _claim: Claim) -> ComputingRank:
    """Measure one rank."""
    return compare(worker)


def compare(worker: Worker) -> ComputingRank:
    """Compare gradients of one backward pass, and weights after three steps."""
    parallel = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    model = worker.model()
    wrapped = parallel(
        model, device_ids=[worker.device.index] if worker.device.type == "cuda" else None
    )
    comparisons = train_beside_one(
        worker, wrapped, partial(worker.torch.optim.SGD, lr=0.1, momentum=0.9), model
    )
    same = worker.same_everywhere([*gradients(model).values(), *weights(model).values()])
    return {"comparisons": comparisons, "facts": {"same on every rank": same}}


REQUIREMENTS = Requirements(
    tolerance={"gradients": SAME, "weights": SAME},
    facts={"same on every rank": True},
)


def judge(_subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge gradients and weights by those of one process."""
    return judge_computed(REQUIREMENTS, expect, evidence)


CLAIMS = {"ddp": judge}
