"""What training steps took in recorded runs, as claims `step` are held to it: images/data/baselines.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from images.site.records import RunLine
from images.validation.rows import StepRow
from validate.harness import timing


def generated(lines: Iterable[RunLine]) -> bytes:
    """Image -> GPU model -> subject -> baseline, of the runs of the newest payload with that step on that model."""
    runs: dict[tuple[str, str, str], list[RunLine]] = {}
    for line in sorted(
        (one for one in lines if one.date and not one.experiment), key=lambda one: one.id
    ):
        for subject in line.steps if len(set(line.gpus)) == 1 else ():
            runs.setdefault((line.image, line.gpus[0], subject), []).append(line)
    found: dict[str, dict[str, Any]] = {}
    for (image, gpu, subject), own in sorted(runs.items()):
        newest = max(own, key=lambda one: str(one.date))
        same = [
            one
            for one in own
            if one.digest == newest.digest or (one.payload and one.payload == newest.payload)
        ]
        made = {**baseline([one.steps[subject] for one in same]), "of": _said(same)}
        found.setdefault(image, {}).setdefault(gpu, {})[subject] = made
    return (json.dumps(found, indent=1) + "\n").encode()


def baseline(steps: list[StepRow]) -> Mapping[str, Any]:
    """The median of runs; the larger spread of those within runs and between them; the largest peak."""
    between = timing.summarise_times([one.seconds for one in steps])
    spread = max(between["spread"], median(one.spread for one in steps))
    return {
        "time": {**between, "seconds": round(between["seconds"], 5), "spread": round(spread, 5)},
        "peak": max(one.peak for one in steps),
        "loss": round(median(one.loss for one in steps), 4),
    }


def _said(runs: list[RunLine]) -> str:
    day = max(str(one.date)[:10] for one in runs)
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''} of {runs[-1].digest.removeprefix('sha256:')[:12]} until {day}"
