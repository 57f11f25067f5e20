"""Several GPUs' frameworks, as far as a CPU can tell: DeepSpeed's configurations and its optimiser for weights that are
offloaded to the CPU, and ray[train] on two workers."""

import importlib
import os
import sys
from functools import partial
from pathlib import Path

from validate.checks._behaviour import BehaviourEvidence, judge
from validate.checks.multigpu import ray_train
from validate.harness import adam
from validate.harness.forked import asked, in_fork

_STAGES = (0, 1, 2, 3)
_WORKERS = 2


def _cpu_adam() -> BehaviourEvidence:
    """DeepSpeed takes an operator that was compiled ahead only for the accelerator that it was compiled for."""
    os.environ["DS_ACCELERATOR"] = "cuda"
    found = adam.compare(importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam)
    return {**found, "compiled_ahead": "deepspeed.ops.adam.cpu_adam_op" in sys.modules}


def _deepspeed() -> BehaviourEvidence:
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


def _ray() -> BehaviourEvidence:
    """DDP on two workers with different data beside one process with all of it: the multigpu tier's, on the CPU."""
    ranks = ray_train.trained(_WORKERS, "cpu")["ranks"]
    compared = [one for rank in ranks for one in rank["comparisons"].values()]
    return {
        "workers": len(ranks),
        "deviation": max(one["error"] for one in compared),
        "control": min(error for one in compared for error in one["controls"].values()),
    }


_SUBJECTS = {
    "deepspeed cpu-adam": lambda: in_fork(_cpu_adam),  # before anything has imported DeepSpeed
    "deepspeed configuration": _deepspeed,
    "ray train": _ray,
}
measure = partial(asked, measures=_SUBJECTS)
CLAIMS = {"P1": judge}
