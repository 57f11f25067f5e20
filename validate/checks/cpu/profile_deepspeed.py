"""Several GPUs' frameworks, as far as a CPU can tell: DeepSpeed's configurations and its optimiser for weights that are
offloaded to the CPU, and ray[train] on two workers."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from validate.checks._behaviour import BehaviourEvidence, judge
from validate.claims import Claim
from validate.harness import adam, drawn
from validate.harness.forked import asked, in_fork

_STAGES = (0, 1, 2, 3)
_WORKERS = 2


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield the evidence of the subjects asked for: deepspeed cpu-adam and configuration, ray train."""
    yield from asked(
        claims,
        {
            "deepspeed cpu-adam": lambda: in_fork(_cpu_adam),  # before anything has imported DeepSpeed
            "deepspeed configuration": _deepspeed,
            "ray train": _ray,
        },
    )


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
    """DDP of a linear layer on two workers with different data: equal weights on both, and other ones than before."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_TRAIN_V2_ENABLED="1")
    ray, train = importlib.import_module("ray"), importlib.import_module("ray.train")
    torch_train = importlib.import_module("ray.train.torch")
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(num_cpus=_WORKERS + 1, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
        try:
            trainer = torch_train.TorchTrainer(
                _train_step,
                train_loop_config={"folder": folder},
                scaling_config=train.ScalingConfig(num_workers=_WORKERS, use_gpu=False),
                run_config=train.RunConfig(storage_path=folder, name="step"),
            )
            trainer.fit()
        finally:
            ray.shutdown()
        torch = importlib.import_module("torch")
        ranks = [torch.load(Path(folder, f"rank{rank}.pt")) for rank in range(_WORKERS)]
    return {
        "workers": len(ranks),
        "spread": float((ranks[0]["after"] - ranks[1]["after"]).abs().max()),
        "moved": float((ranks[0]["after"] - ranks[0]["before"]).abs().max()),
    }


def _train_step(config: Mapping[str, str]) -> None:
    """What each worker runs."""
    torch = importlib.import_module("torch")
    context = importlib.import_module("ray.train").get_context()
    prepare = importlib.import_module("ray.train.torch").prepare_model
    torch.manual_seed(drawn.seed())
    model = prepare(torch.nn.Linear(8, 1))
    weight = next(model.parameters())
    before = weight.detach().clone()
    torch.manual_seed(drawn.seed() + 1 + context.get_world_rank())
    model(torch.randn(4, 8)).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    result = {"before": before, "after": weight.detach().clone()}
    torch.save(result, Path(config["folder"], f"rank{context.get_world_rank()}.pt"))


CLAIMS = {"P1": judge}
