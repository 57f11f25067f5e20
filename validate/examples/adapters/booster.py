"""ColossalAI's examples: rows in the order of the data, no clipping, weights saved in shards."""

from __future__ import annotations

from dataclasses import replace

from validate.examples.adapters import programs
from validate.examples.run import Run
from validate.examples.trained import Optimiser, Trained, in_batches


def read(run: Run) -> Trained:
    """As of every program, but for what the Booster does in its own way."""
    settings, rows = run.config["training"], programs.rows_of(run)
    size, steps = int(settings["per_device_train_batch_size"]), int(settings["max_steps"])
    return replace(
        programs.fully_trained(run, programs.reloaded(run)),
        batches=in_batches(rows, range(len(rows)), size, steps),
        optimiser=Optimiser(rate=float(settings["learning_rate"]), clip=0.0),
        all_labels=False,
        facts={"shards": len(list((run.folder / run.result()["saved"]).glob("*.safetensors")))},
    )
