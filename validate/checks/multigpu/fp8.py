"""fp8-fsdp2: torchao's FP8 training under FSDP2 must give the gradients of one process in FP8."""

import importlib
from functools import partial
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import (
    NEXT_STEP,
    ComputingRank,
    RanksEvidence,
    RanksExpect,
    Requirements,
    Worker,
    compare_tensors,
    compute_loss,
    gather_gradients,
    judge_requirements,
    relative_error,
)
from validate.checks.multigpu.fsdp import (
    average_gradients_of_ranks,
    describe_sharding,
    shard_model,
)
from validate.claims import Claim
from validate.judging import Finding

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, _claim: Claim) -> ComputingRank:
    """Compare the gradients of a training step in FP8 under FSDP2 with those of one process.

    Under FSDP2 each rank (this process is one) holds a part of the weights, and gathers the rest
    for each layer, here in FP8. The single process computes in FP8, too, but has nothing to gather.
    The distance of the gradients from float32's is returned as a figure. On a CPU, which cannot
    multiply FP8 numbers, torchao emulates the products.
    """
    model = make_fp8_model(worker, gather_in_fp8=True)
    single_model = make_fp8_model(worker, gather_in_fp8=False)
    float32_model = worker.make_model()

    shard_model(model, mesh=worker.make_mesh())
    compute_loss(model(worker.make_batch(worker.rank))).backward()
    compute_loss(float32_model(worker.make_batch_of_all_ranks())).backward()
    single_gradients = average_gradients_of_ranks(worker, single_model)
    gradients = gather_gradients(model)
    float32_gradients = gather_gradients(float32_model)

    # Name the classes of the linear layers: torchao must have replaced every one of them.
    layer_classes = {type(layer).__name__ for layer in model.modules()}
    linear_classes = sorted(name for name in layer_classes if "Linear" in name)
    comparison = compare_tensors(gradients, single_gradients, {"float32": float32_gradients})
    sharding = describe_sharding(worker, list(model.parameters()))
    return {
        "comparisons": {"gradients": comparison},
        "figures": {"distance from float32": relative_error(gradients, float32_gradients)},
        "facts": {"layers": linear_classes, **sharding},
    }


def make_fp8_model(worker: Worker, *, gather_in_fp8: bool) -> Any:
    """Return the worker's model with its linear layers converted to torchao's FP8 layers.

    `gather_in_fp8` makes FSDP2 gather the weights in FP8 instead of float32.
    """
    float8 = importlib.import_module("torchao.float8")
    config = float8.Float8LinearConfig(
        enable_fsdp_float8_all_gather=gather_in_fp8, emulate=worker.device.type == "cpu"
    )
    return float8.convert_to_float8_training(worker.make_model(), config=config)


REQUIREMENTS = Requirements(
    tolerance={"gradients": 0.001},
    # At most 0.126 is a signal-to-noise ratio of at least 18 dB. Less than 0.005 would not be FP8.
    figures={"distance from float32": (0.005, 0.126)},
    facts={"sharded": True, "parts make the whole": True, "layers": ["Float8Linear"]},
)


def judge(_subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge that gradients are those of one process in FP8, and differ from float32's."""
    return judge_requirements(REQUIREMENTS, expect, evidence)


CLAIMS = {"fp8-fsdp2": judge}
NEXT_STEPS = {"fp8-fsdp2": NEXT_STEP}
