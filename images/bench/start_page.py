"""The part `start` as tables and goals. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from images.bench import cells
from images.bench.cells import Goal
from images.bench.data import StartData, StartRun
from images.bench.stats import middle

_MEMORY = {
    "host memory, peak": "host_peak",
    "GPU memory, context": "gpu_context",
    "GPU memory, context and libraries": "gpu_beside",
}


def section(data: StartData) -> str:
    """Seconds to each mark, then memory: medians of each side in each mode."""
    groups = _groups(data["runs"])
    marks = list(data["runs"][0]["at"])
    seconds = [
        [side, mode, *(f"{middle([run['at'][mark] for run in runs]):.1f}" for mark in marks)]
        for side, mode, runs in groups
    ]
    memory = [[side, mode, *(_megabytes(runs, key) for key in _MEMORY.values())] for side, mode, runs in groups]
    counts = ", ".join(sorted({str(len(runs)) for *_, runs in groups}))
    return (
        f"### From a container's start to trained steps on a GPU\n\n{cells.cell(data['gpu'])}\n\n"
        f"Seconds from the container's creation to the end of each stage (medians of {counts}):\n\n"
        + cells.table(["image", "page cache, CUDA_MODULE_LOADING", *marks], seconds)
        + "\nMB of the process:\n\n"
        + cells.table(["image", "page cache, CUDA_MODULE_LOADING", *_MEMORY], memory)
    )


def goals(data: StartData) -> Iterator[Goal]:
    """Pruning takes away what never runs: the losses say so."""
    losses = {tuple(run["losses"]) for run in data["runs"]}
    measured = f"{len(losses)} different in {len(data['runs'])} runs"
    yield Goal(
        what="losses of QLoRA's first steps on a GPU", goal="the same in all", measured=measured, met=len(losses) == 1
    )


def _groups(runs: Sequence[StartRun]) -> list[tuple[str, str, list[StartRun]]]:
    """Side, mode and its runs, in the order in which they first ran."""
    found: dict[tuple[str, str], list[StartRun]] = {}
    for run in runs:
        mode = f"{'cold' if run['mode']['cold'] else 'warm'}, {run['mode']['loading']}"
        found.setdefault((run["side"], mode), []).append(run)
    return [(side, mode, same) for (side, mode), same in found.items()]


def _megabytes(runs: Sequence[StartRun], key: str) -> str:
    values: list[int] = [run[key] for run in runs]  # type: ignore[literal-required]
    return cells.megabytes(middle([float(value) for value in values]))
