"""fp8-fsdp2: torchao's FP8 training under FSDP2, with all-gathers in FP8, has the gradients of one process in FP8."""

import importlib
from functools import partial
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import (
    ComputingRank,
    RanksEvidence,
    RanksExpect,
    Requirements,
    Worker,
    compared,
    error,
    gradients,
    judge_computed,
    loss_of,
)
from validate.checks.multigpu.fsdp import fully_shard, held, mean_gradients
from validate.claims import Claim
from validate.judging import Finding

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, _claim: Claim) -> ComputingRank:
    """Compare the gradients of one step. A CPU multiplies no FP8: torchao emulates it there."""
    model, alone, full = (
        _converted(worker, gather=True),
        _converted(worker, gather=False),
        worker.model(),
    )
    fully_shard(model, mesh=worker.mesh())
    loss_of(model(worker.batch(worker.rank))).backward()
    loss_of(full(worker.everything())).backward()
    wanted = mean_gradients(worker, alone)
    found = gradients(model)
    layers = sorted(
        {type(layer).__name__ for layer in model.modules() if "Linear" in type(layer).__name__}
    )
    return {
        "comparisons": {"gradients": compared(found, wanted, float32=gradients(full))},
        "figures": {"distance from float32": error(found, gradients(full))},
        "facts": {"layers": layers, **held(worker, list(model.parameters()))},
    }


def _converted(worker: Worker, *, gather: bool) -> Any:
    float8 = importlib.import_module("torchao.float8")
    config = float8.Float8LinearConfig(
        enable_fsdp_float8_all_gather=gather, emulate=worker.device.type == "cpu"
    )
    return float8.convert_to_float8_training(worker.model(), config=config)


REQUIREMENTS = Requirements(
    tolerance={"gradients": 0.001},
    # A signal-to-noise ratio of 18 dB at least. What is exactly as in float32 would not be FP8.
    figures={"distance from float32": (0.005, 0.126)},
    facts={"sharded": True, "parts make the whole": True, "layers": ["Float8Linear"]},
)


def judge(_subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge gradients by those of one process in FP8, and by float32's, from which they must differ."""
    return judge_computed(REQUIREMENTS, expect, evidence)


CLAIMS = {"fp8-fsdp2": judge}
