"""M2: DistributedDataParallel, with other data on each rank, has the gradients of one process with all data."""

import importlib
from functools import partial
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import Worker, gradients, judge, train_beside_one, weights
from validate.claims import Claim

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, _claim: Claim) -> dict[str, Any]:
    return compare(worker)


def compare(worker: Worker) -> dict[str, Any]:
    """Gradients of one backward pass, and weights after three steps."""
    parallel = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    model = worker.model()
    wrapped = parallel(model, device_ids=[worker.device.index] if worker.device.type == "cuda" else None)
    comparisons = train_beside_one(worker, wrapped, partial(worker.torch.optim.SGD, lr=0.1, momentum=0.9), model)
    same = worker.same_everywhere([*gradients(model).values(), *weights(model).values()])
    return {"comparisons": comparisons, "facts": {"same on every rank": same}}


CLAIMS = {"M2": judge}
