"""M5: torchao's FP8 training under FSDP2, with all-gathers in FP8, has the gradients of one process in FP8."""

import importlib
from functools import partial
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import Worker, compared, error, gradients, judge, loss_of
from validate.checks.multigpu.fsdp import fully_shard, held, mean_gradients
from validate.claims import Claim

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, _claim: Claim) -> dict[str, Any]:
    """Gradients of one step. A CPU multiplies no FP8: torchao emulates it there."""
    model, alone, full = _converted(worker, gather=True), _converted(worker, gather=False), worker.model()
    fully_shard(model, mesh=worker.mesh())
    loss_of(model(worker.batch(worker.rank))).backward()
    loss_of(full(worker.everything())).backward()
    wanted = mean_gradients(worker, alone)
    found = gradients(model)
    layers = sorted({type(layer).__name__ for layer in model.modules() if "Linear" in type(layer).__name__})
    return {
        "comparisons": {"gradients": compared(found, wanted, float32=gradients(full))},
        "figures": {"distance from float32": error(found, gradients(full))},
        "facts": {"layers": layers, **held(worker, list(model.parameters()))},
    }


def _converted(worker: Worker, *, gather: bool) -> Any:
    float8 = importlib.import_module("torchao.float8")
    config = float8.Float8LinearConfig(enable_fsdp_float8_all_gather=gather, emulate=worker.device.type == "cpu")
    return float8.convert_to_float8_training(worker.model(), config=config)


CLAIMS = {"M5": judge}
