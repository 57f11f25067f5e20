"""Make images/data/baselines.json: what training steps took in recorded runs.

The claims `step` of later runs are compared with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from images.site.records import RunLine
from images.validation.rows import StepRow
from validate.harness import timing


def generated(lines: Iterable[RunLine]) -> bytes:
    """Return the file: image -> GPU model -> subject -> baseline.

    A baseline is of all runs of one image: that of the newest run with this step on this model. A
    run counts for a model if all its GPUs are of that model.
    """
    runs_by_step: dict[tuple[str, str, str], list[RunLine]] = {}
    for line in sorted(lines, key=lambda line: line.id):
        has_one_model = len(set(line.gpus)) == 1
        if line.date and not line.experiment and has_one_model:
            for subject in line.steps:
                runs_by_step.setdefault((line.image, line.gpus[0], subject), []).append(line)

    baselines: dict[str, dict[str, Any]] = {}
    for (image, gpu, subject), runs in sorted(runs_by_step.items()):
        newest = max(runs, key=lambda run: str(run.date))
        same_image = []
        for run in runs:
            has_same_layers = run.payload and run.payload == newest.payload
            if run.digest == newest.digest or has_same_layers:
                same_image.append(run)
        steps = [run.steps[subject] for run in same_image]
        row = {**baseline(steps), "of": _describe(same_image)}
        baselines.setdefault(image, {}).setdefault(gpu, {})[subject] = row
    return (json.dumps(baselines, indent=1) + "\n").encode()


def baseline(steps: list[StepRow]) -> Mapping[str, Any]:
    """Return the baseline of one step in several runs.

    It has the median time; the spread within runs or between them, whichever is larger; the largest
    peak of memory; and the median loss.
    """
    between = timing.summarise_times([step.seconds for step in steps])
    spread = max(between["spread"], median(step.spread for step in steps))
    return {
        "time": {**between, "seconds": round(between["seconds"], 5), "spread": round(spread, 5)},
        "peak": max(step.peak for step in steps),
        "loss": round(median(step.loss for step in steps), 4),
    }


def _describe(runs: list[RunLine]) -> str:
    """Return `2 runs of 0123456789ab until 2026-11-28`, for runs of the same image."""
    day = max(str(run.date)[:10] for run in runs)
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    image_id = runs[-1].digest.removeprefix("sha256:")[:12]
    return f"{count} of {image_id} until {day}"
