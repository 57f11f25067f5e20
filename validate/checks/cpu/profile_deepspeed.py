"""framework: check DeepSpeed's optimiser on the CPU, and ray[train] on two workers.

These are the parts of frameworks for several GPUs that can be measured without any.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict

from validate.checks._adam import NEXT_STEP, judge_adam
from validate.checks._behaviour import Limits, judge_figures, judge_limits
from validate.checks.multigpu import ray_train
from validate.checks.multigpu._ranks import ROUNDING_TOLERANCE
from validate.harness import adam
from validate.harness.forked import measure_claimed_subjects, measure_in_fork
from validate.judging import Finding
from validate.next_steps import pin

_WORKERS = 2
LEAST_CONTROL = 0.001
"""How far a result that is wrong on purpose must be off: far more than ROUNDING_TOLERANCE."""


class RayEvidence(TypedDict):
    """How far training on several workers is from training in one process."""

    workers: int
    deviation: float  # the largest of any worker, relative
    control: float  # the smallest deviation of a result that is wrong on purpose


def compare_cpu_adam() -> adam.CompiledDeviations:
    """Compare DeepSpeed's CPU Adam with torch's AdamW (validate/harness/adam.py)."""
    # The image's operator was compiled ahead, for the accelerator `cuda`. Without a GPU, DeepSpeed
    # would choose another accelerator, and would not take the operator.
    os.environ["DS_ACCELERATOR"] = "cuda"
    deviations = adam.compare(importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam)
    return {**deviations, "compiled_ahead": "deepspeed.ops.adam.cpu_adam_op" in sys.modules}


def train_with_ray() -> RayEvidence:
    """Train with DDP on two workers of Ray, and compare with one process that has all the data.

    The program is that of the multigpu tier, here on the CPU. Each worker (rank) compares its
    gradients and weights with those of one process.
    """
    ranks = ray_train.run_workers(_WORKERS, "cpu")["ranks"]
    # The worst of all comparisons counts: the largest error, and the smallest of a control.
    errors: list[float] = []
    control_errors: list[float] = []
    for rank in ranks:
        for comparison in rank["comparisons"].values():
            errors.append(comparison["error"])
            control_errors += comparison["controls"].values()
    return {
        "workers": len(ranks),
        "deviation": max(errors),
        "control": min(control_errors),
    }


_SUBJECTS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    # Before this, nothing may have imported DeepSpeed. So it comes first, and in a fork.
    "deepspeed-cpu-adam": lambda: measure_in_fork(compare_cpu_adam),
    "ray-train": train_with_ray,
}
measure = partial(measure_claimed_subjects, measures=_SUBJECTS)


def judge_ray(subject: str, expect: Limits, evidence: RayEvidence) -> Finding:
    """Pass if training on two workers of Ray gave the weights that training in one process gives.

    `deviation` is how far they are apart, `control` how far wrong weights are.
    """
    # Kept evidence from before 2026-11-28 has other figures. The claim that is kept beside it has
    # the limits of these figures; a newer claim has no limits.
    if "at_most" in expect:
        return judge_limits(subject, expect, evidence)
    return judge_figures(
        evidence,
        equal={"workers": _WORKERS},
        at_most={"deviation": ROUNDING_TOLERANCE},
        at_least={"control": LEAST_CONTROL},
    )


CLAIMS = {
    "framework/deepspeed-cpu-adam": judge_adam,
    "framework/ray-train": judge_ray,
}
NEXT_STEPS = {
    "framework/deepspeed-cpu-adam": NEXT_STEP,
    "framework/ray-train": pin("another release of ray")
    + "; until then, start training by torchrun in place of ray[train]",
}
