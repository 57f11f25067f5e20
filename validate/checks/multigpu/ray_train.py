"""ddp under ray[train]: its workers measure what the ranks of torchrun measure."""

import importlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from validate.checks.multigpu import _launch, ddp
from validate.checks.multigpu._ranks import RanksEvidence, Worker
from validate.claims import Claim
from validate.harness.forked import attempt


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, RanksEvidence]]:
    """Yield the subject of each claim, and what the workers of ray[train] measured for it."""
    for claim in claims:
        rank_count = _launch.count_ranks(claim)
        yield claim.subject, attempt(partial(run_workers, rank_count, claim.expect["device"]))


def run_workers(rank_count: int, device_type: str) -> RanksEvidence:
    """Run `measure_as_worker` in several workers of Ray Train, and return what they measured.

    `device_type` is "cuda", with a GPU for each worker, or "cpu". Raises ray's error if a worker
    fails.
    """
    # ray must neither report its use over the network nor fall back to its older trainer.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_TRAIN_V2_ENABLED="1")
    ray = importlib.import_module("ray")
    ray_train = importlib.import_module("ray.train")
    torch_trainer = importlib.import_module("ray.train.torch").TorchTrainer
    uses_gpus = device_type == "cuda"
    gpu_count = rank_count if uses_gpus else 0
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        # A CPU for each worker, and one for the process by which ray directs them.
        ray.init(
            num_cpus=rank_count + 1,
            num_gpus=gpu_count,
            include_dashboard=False,
            _temp_dir=folder,
            log_to_driver=False,
        )
        try:
            torch_trainer(
                measure_as_worker,
                train_loop_config={"folder": folder},
                scaling_config=ray_train.ScalingConfig(num_workers=rank_count, use_gpu=uses_gpus),
                run_config=ray_train.RunConfig(storage_path=folder, name="step"),
            ).fit()
        finally:
            ray.shutdown()

        reports = []
        for rank in range(rank_count):
            reports.append(json.loads(Path(folder, f"rank{rank}.json").read_text()))
        return {"ranks": reports}


def measure_as_worker(config: Mapping[str, str]) -> None:
    """Compare DDP with one process in a worker of ray[train], and write the result to a file.

    ray has already formed the process group and chosen this worker's device. The result goes to
    `rankNUMBER.json` in the folder that `config` names.
    """
    torch = importlib.import_module("torch")
    context = importlib.import_module("ray.train").get_context()
    device = importlib.import_module("ray.train.torch").get_device()
    worker = Worker(
        torch=torch,
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        device=device,
        folder=Path(config["folder"]),
    )
    report = {**ddp.compare_ddp(worker), "device": worker.device_facts()}
    (worker.folder / f"rank{worker.rank}.json").write_text(json.dumps(report))


CLAIMS = {"ddp": ddp.judge}
NEXT_STEPS = ddp.NEXT_STEPS
