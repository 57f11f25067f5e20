"""Several GPUs' frameworks, as far as a CPU can tell: DeepSpeed's configurations and its optimiser for weights that are
offloaded to the CPU, and ray[train] on two workers."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from validate.checks._adam import judge_adam
from validate.checks._behaviour import Limits, judge_figures, judge_limits
from validate.checks.multigpu import ray_train
from validate.checks.multigpu._ranks import SAME
from validate.harness import adam
from validate.harness.forked import asked, in_fork
from validate.judging import Finding

_STAGES = (0, 1, 2, 3)
_WORKERS = 2


class ConfigurationEvidence(TypedDict):
    """ZeRO stages as DeepSpeed reads them, and how it refuses one that there is not."""

    stages: list[int]
    zero3_init: bool
    control_refused: bool
    nvcc_there_or_ignored: bool


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


def _deepspeed() -> ConfigurationEvidence:
    """Each ZeRO stage as DeepSpeed reads it, and as the Trainer's own reader asks for it; a stage 4 must be refused."""
    config = importlib.import_module("deepspeed.runtime.config").DeepSpeedConfig
    trainers = importlib.import_module("transformers.integrations.deepspeed").HfDeepSpeedConfig
    stages = [int(config(_zero(stage)).zero_config.stage) for stage in _STAGES]
    refused = ""
    try:
        config(_zero(max(_STAGES) + 1))
    except ValueError as error:
        refused = str(error)[:200]
    # Whether `import deepspeed` can succeed beside a GPU, where it asks nvcc for its version unless told not to.
    home = importlib.import_module("torch.utils.cpp_extension").CUDA_HOME
    return {
        "stages": stages,
        "zero3_init": bool(trainers(_zero(3)).is_zero3()),
        "control_refused": "stage" in refused,
        "nvcc_there_or_ignored": bool(os.environ.get("DS_IGNORE_CUDA_DETECTION"))
        or (bool(home) and Path(home, "bin", "nvcc").is_file()),
    }


def _zero(stage: int) -> dict[str, object]:
    return {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}


def _ray() -> RayEvidence:
    """DDP on two workers with different data beside one process with all of it: the multigpu tier's, on the CPU."""
    ranks = ray_train.trained(_WORKERS, "cpu")["ranks"]
    compared = [one for rank in ranks for one in rank["comparisons"].values()]
    return {
        "workers": len(ranks),
        "deviation": max(one["error"] for one in compared),
        "control": min(error for one in compared for error in one["controls"].values()),
    }


_SUBJECTS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "deepspeed-cpu-adam": lambda: in_fork(_cpu_adam),  # before anything has imported DeepSpeed
    "deepspeed-configuration": _deepspeed,
    "ray-train": _ray,
}
measure = partial(asked, measures=_SUBJECTS)


def judge_configuration(_subject: str, _expect: object, evidence: ConfigurationEvidence) -> Finding:
    """Judge that every stage is read, a stage 4 refused, and the import asks for no nvcc."""
    return judge_figures(
        evidence,
        equal={
            "stages": list(_STAGES),
            "zero3_init": True,
            "control_refused": True,
            "nvcc_there_or_ignored": True,
        },
    )


def judge_ray(subject: str, expect: Limits, evidence: RayEvidence) -> Finding:
    """Judge that two workers train as one process does."""
    # Claims recorded before 2026-11-28 bring their own limits, the oldest of figures that are measured no more.
    if "at_most" in expect:
        return judge_limits(subject, expect, evidence)
    return judge_figures(
        evidence,
        equal={"workers": _WORKERS},
        at_most={"deviation": SAME},
        at_least={"control": 0.001},
    )


CLAIMS = {
    "framework/deepspeed-cpu-adam": judge_adam,
    "framework/deepspeed-configuration": judge_configuration,
    "framework/ray-train": judge_ray,
}
