"""ddp: DistributedDataParallel must train as one process does that has the data of all ranks."""

import importlib
from functools import partial

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import (
    NEXT_STEP,
    ROUNDING_TOLERANCE,
    ComputingRank,
    RanksEvidence,
    RanksExpect,
    Requirements,
    Worker,
    compare_training,
    gather_gradients,
    gather_weights,
    judge_requirements,
)
from validate.claims import Claim
from validate.judging import Finding

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, _claim: Claim) -> ComputingRank:
    """Return what one rank of torchrun measures."""
    return compare_ddp(worker)


def compare_ddp(worker: Worker) -> ComputingRank:
    """Compare gradients and trained weights of a model in DDP with those of one process.

    Each rank, one of the processes that train together, has other data; the one process has the
    data of all. `comparisons` of the result has how far gradients and weights are off. The fact
    "same on every rank" is whether all ranks hold the same ones afterwards, bit for bit.
    """
    ddp = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    sgd = partial(worker.torch.optim.SGD, lr=0.1, momentum=0.9)
    model = worker.make_model()
    device_ids = [worker.device.index] if worker.device.type == "cuda" else None
    wrapped_model = ddp(model, device_ids=device_ids)

    comparisons = compare_training(worker, wrapped_model, sgd, unwrapped_model=model)
    tensors = [*gather_gradients(model).values(), *gather_weights(model).values()]
    is_same = worker.are_same_on_all_ranks(tensors)
    return {"comparisons": comparisons, "facts": {"same on every rank": is_same}}


REQUIREMENTS = Requirements(
    tolerance={"gradients": ROUNDING_TOLERANCE, "weights": ROUNDING_TOLERANCE},
    facts={"same on every rank": True},
)


def judge(_subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge that gradients and weights are those of one process, and the same on every rank."""
    return judge_requirements(REQUIREMENTS, expect, evidence)


CLAIMS = {"ddp": judge}
NEXT_STEPS = {"ddp": NEXT_STEP}
