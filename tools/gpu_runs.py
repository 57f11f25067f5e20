"""The table of what ran on GPUs, made from results/runs.jsonl: results/gpu.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime

from images.config.matrix import Sources
from images.planning import chooser
from images.site.inputs import SiteInputs, plan_images
from images.site.recorded import RecordedRuns
from images.site.records import RunLine
from images.site.status import ImageStatus
from validate.claims import GPU_TIERS, Tier
from validate.judging import Status

_COLUMNS = (
    *("image", "image ID", "tier", "GPUs", "date", "verdict"),
    *("PASS", "FAIL", "KNOWN", "UNPROVEN", "run"),
)
_UNDATED = datetime.min.replace(tzinfo=UTC)
_HEAD = """\
# What ran on GPUs

This page lists every recorded run of an image on GPUs, so you can see whether it was measured on
hardware like yours. For example, `2 x H200 | ... | PASS | 28 | 0 | 0 | 5` says that on a machine
with two H200 28 claims passed, none failed, none was KNOWN, and 5 could not be measured.

A verdict holds for one image ID. `nox -s build` says at its end whether your image has the same
layers as one of these. The columns PASS to UNPROVEN count claims ([what these words
mean](../docs/validation.md#verdicts)). A run with few claims measured only a part of its tier. A
claim that failed in a run with the verdict PASS is not required.

`nox -s generate` makes this page from [runs.jsonl](runs.jsonl).

"""


def passed(statuses: Iterable[ImageStatus]) -> str:
    """Return how many images passed their GPU tiers, as a sentence. The README quotes it.

    `statuses`: of all images that have runs, by the one definition (images/site/status.py).
    """
    gpus: set[str] = set()
    on_one_gpu = on_several = stale = 0
    for status in statuses:
        passing = [run for run in status.deciding if run.is_pass]
        on_gpu = [run for run in passing if run.tier is Tier.GPU]
        if on_gpu:
            on_one_gpu += 1
            on_several += any(run.tier is Tier.MULTIGPU for run in passing)
            gpus.update(run.gpus for run in on_gpu)
        elif any(run.tier is Tier.GPU and run.verdict is Status.PASS for run in status.deciding):
            stale += 1
    models = " or ".join(sorted(gpus))
    return (
        f"{on_one_gpu} images passed their gpu tier on an {models}, {on_several} of them also "
        f"multigpu; {stale} more passed it with layers that have moved since."
    )


def statuses(sources: Sources) -> list[ImageStatus]:
    """Return the status of every image that has recorded runs, in the matrix or outside of it."""
    recorded = RecordedRuns.read(sources)
    inputs = SiteInputs(sources=sources, today=date.min, runs=recorded.runs)
    found = []
    for planned in plan_images(inputs):
        if planned.image:
            found.append(recorded.status(planned.image, with_claims=False))
    return found


def page(lines: Iterable[RunLine], sources: Sources) -> bytes:
    """Return the content of results/gpu.md."""
    runs = sorted(_on_gpus(lines), key=lambda line: (line.image, line.date or _UNDATED))
    rows = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for line in runs:
        rows += _rows(line)
    table = "\n".join(rows)
    return f"{_HEAD}{passed(statuses(sources))}\n\n{table}\n".encode()


def _on_gpus(lines: Iterable[RunLine]) -> list[RunLine]:
    """Return the runs that had a GPU, but for images that were broken on purpose."""
    return [line for line in lines if line.gpus and not line.experiment]


def _rows(line: RunLine) -> Iterator[str]:
    """Yield a line of the table for each tier of a run that took GPUs."""
    models = [chooser.model_of(name) for name in line.gpus]
    gpus = f"{len(models)} x {models[0]}" if len(models) > 1 else models[0]
    day = f"{line.date:%Y-%m-%d}" if line.date else "not recorded"
    for tier in GPU_TIERS:
        count = line.tiers.get(tier)
        if count is None:
            continue
        numbers = [
            str(count.counts.get(status, 0))
            for status in (Status.PASS, Status.FAIL, Status.KNOWN, Status.UNPROVEN)
        ]
        cells = [
            line.image,
            f"`{line.digest[7:19]}`",
            str(tier),
            gpus,
            day,
            str(count.verdict),
            *numbers,
        ]
        yield f"| {' | '.join(cells)} | {line.id.partition('/')[2]} |"
