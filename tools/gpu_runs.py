"""The table of what ran on GPUs, made from results/runs.jsonl: results/gpu.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from images.planning import chooser
from images.site.records import RunLine
from validate.claims import Tier
from validate.judging import Status

_ON_GPUS = (Tier.GPU, Tier.MULTIGPU)
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


def passed(lines: Iterable[RunLine]) -> str:
    """Return how many images passed their GPU tiers, as a sentence. The README quotes it."""
    on_one_gpu: set[tuple[str, str]] = set()
    on_several: set[tuple[str, str]] = set()
    for line in _on_gpus(lines):
        for tier, images in ((Tier.GPU, on_one_gpu), (Tier.MULTIGPU, on_several)):
            count = line.tiers.get(tier)
            if count and count.verdict is Status.PASS:
                images.add((line.image, line.digest))
    names = {image for image, _digest in on_one_gpu}
    names_of_both = {image for image, _digest in on_one_gpu & on_several}
    return (
        f"{len(names)} images passed their gpu tier on an H100 or H200, "
        f"{len(names_of_both)} of them also multigpu under the same image ID."
    )


def page(lines: Iterable[RunLine]) -> bytes:
    """Return the content of results/gpu.md."""
    runs = sorted(_on_gpus(lines), key=lambda line: (line.image, line.date or _UNDATED))
    rows = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for line in runs:
        rows += _rows(line)
    table = "\n".join(rows)
    return f"{_HEAD}{passed(runs)}\n\n{table}\n".encode()


def _on_gpus(lines: Iterable[RunLine]) -> list[RunLine]:
    """Return the runs that had a GPU, but for images that were broken on purpose."""
    return [line for line in lines if line.gpus and not line.experiment]


def _rows(line: RunLine) -> Iterator[str]:
    """Yield a line of the table for each tier of a run that took GPUs."""
    models = [chooser.model_of(name) for name in line.gpus]
    gpus = f"{len(models)} x {models[0]}" if len(models) > 1 else models[0]
    day = f"{line.date:%Y-%m-%d}" if line.date else "not recorded"
    for tier in _ON_GPUS:
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
