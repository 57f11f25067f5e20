"""Several GPUs' frameworks, as far as a CPU can tell: DeepSpeed's optimiser for weights that are offloaded to the CPU,
and ray[train] on two workers."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict

from validate.checks._adam import judge_adam
from validate.checks._behaviour import Limits, judge_figures, judge_limits
from validate.checks.multigpu import ray_train
from validate.checks.multigpu._ranks import ROUNDING_TOLERANCE
from validate.harness import adam
from validate.harness.forked import measure_claimed_subjects, measure_in_fork
from validate.judging import Finding

_WORKERS = 2


class RayEvidence(TypedDict):
    """The largest deviation of all workers from one process, and the least of their controls."""

    workers: int
    deviation: float
    control: float


def _cpu_adam() -> adam.CompiledDeviations:
    """DeepSpeed takes an operator that was compiled ahead only for the accelerator that it was compiled for."""
    os.environ["DS_ACCELERATOR"] = "cuda"
    found = adam.compare(importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam)
    return {**found, "compiled_ahead": "deepspeed.ops.adam.cpu_adam_op" in sys.modules}


def _ray() -> RayEvidence:
    """DDP on two workers with different data beside one process with all of it: the multigpu tier's, on the CPU."""
    ranks = ray_train.run_workers(_WORKERS, "cpu")["ranks"]
    compared = [one for rank in ranks for one in rank["comparisons"].values()]
    return {
        "workers": len(ranks),
        "deviation": max(one["error"] for one in compared),
        "control": min(error for one in compared for error in one["controls"].values()),
    }


_SUBJECTS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "deepspeed-cpu-adam": lambda: measure_in_fork(
        _cpu_adam
    ),  # before anything has imported DeepSpeed
    "ray-train": _ray,
}
measure = partial(measure_claimed_subjects, measures=_SUBJECTS)


def judge_ray(subject: str, expect: Limits, evidence: RayEvidence) -> Finding:
    """Judge that two workers train as one process does."""
    # Claims recorded before 2026-11-28 bring their own limits, the oldest of figures that are measured no more.
    if "at_most" in expect:
        return judge_limits(subject, expect, evidence)
    return judge_figures(
        evidence,
        equal={"workers": _WORKERS},
        at_most={"deviation": ROUNDING_TOLERANCE},
        at_least={"control": 0.001},
    )


CLAIMS = {
    "framework/deepspeed-cpu-adam": judge_adam,
    "framework/ray-train": judge_ray,
}
