"""ddp under another launcher: ray[train] starts two workers, each a rank of the same DDP measurement."""

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
    """Yield the evidence of all workers."""
    for claim in claims:
        ranks, device = _launch.ranks_of(claim), claim.expect["device"]
        yield claim.subject, attempt(partial(trained, ranks, device))


def trained(ranks: int, device: str) -> RanksEvidence:
    """Return the results of all workers, in the form of those of torchrun's ranks."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_TRAIN_V2_ENABLED="1")
    ray, train = importlib.import_module("ray"), importlib.import_module("ray.train")
    torch_train, cuda = importlib.import_module("ray.train.torch"), device == "cuda"
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(
            num_cpus=ranks + 1,
            num_gpus=ranks if cuda else 0,
            include_dashboard=False,
            _temp_dir=folder,
            log_to_driver=False,
        )
        try:
            torch_train.TorchTrainer(
                work,
                train_loop_config={"folder": folder},
                scaling_config=train.ScalingConfig(num_workers=ranks, use_gpu=cuda),
                run_config=train.RunConfig(storage_path=folder, name="step"),
            ).fit()
        finally:
            ray.shutdown()
        return {
            "ranks": [
                json.loads(Path(folder, f"rank{rank}.json").read_text()) for rank in range(ranks)
            ]
        }


def work(config: Mapping[str, str]) -> None:
    """Run in each worker. ray has made the process group and chosen the device."""
    torch, context = (
        importlib.import_module("torch"),
        importlib.import_module("ray.train").get_context(),
    )
    device = importlib.import_module("ray.train.torch").get_device()
    folder, rank = Path(config["folder"]), context.get_world_rank()
    worker = Worker(
        torch=torch, rank=rank, ranks=context.get_world_size(), device=device, folder=folder
    )
    found = {**ddp.compare(worker), "device": worker.device_facts()}
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))


CLAIMS = {"ddp": ddp.judge}
