"""M2: DistributedDataParallel, with other data on each rank, has the gradients of one process with all data."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import (
    Worker,
    compared,
    gradients,
    judge,
    loss_of,
    trained,
    weights,
)
from validate.claims import Claim

_STEPS = 3

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, _claim: Claim) -> dict[str, Any]:
    return compare(worker)


def compare(worker: Worker) -> dict[str, Any]:
    """Gradients of one backward pass, and weights after three steps."""
    torch = worker.torch
    parallel = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    model, alone = worker.model(), worker.model()
    wrapped = parallel(model, device_ids=[worker.device.index] if worker.device.type == "cuda" else None)
    with wrapped.no_sync():
        loss_of(wrapped(worker.batch(worker.rank))).backward()
    own = gradients(model)
    wrapped.zero_grad()
    loss_of(wrapped(worker.batch(worker.rank))).backward()
    found = gradients(model)
    loss_of(alone(worker.everything())).backward()
    wanted = gradients(alone)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (model, alone)]
    before = weights(alone)
    trained(wrapped, optimizers[0], [worker.batch(worker.rank, step) for step in range(_STEPS)])
    trained(alone, optimizers[1], [worker.everything(step) for step in range(_STEPS)])
    after = weights(model)
    return {
        "comparisons": {
            "gradients": compared(found, wanted, not_exchanged=own),
            "weights": compared(after, weights(alone), untrained=before),
        },
        "facts": {"same on every rank": worker.same_everywhere([*found.values(), *after.values()])},
    }


CLAIMS = {"M2": judge}
