"""What a fleet's jobs cost beside their trials, by executor: a table and goals. Pure.

What is ours: the whole command, less the trials, less what the executor takes for as many jobs that do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from images.bench import cells
from images.bench.cells import Goal
from images.bench.data import OverheadData, OverheadRun
from images.bench.stats import middle

MOST = 0.05
"""Part of the trials' time that is ours, at most."""


def section(data: OverheadData) -> str:
    """A row for each executor."""
    rows = []
    for executor, runs in _executors(data):
        parts = [f"{middle([run['work'] for run in runs]):.1f}", f"{middle([run['empty'] for run in runs]):.1f}"]
        a_job = middle(_ours(runs)) / data["jobs"]
        told = [f"{a_job:.2f}", f"{a_job / MOST:.0f} s", cells.loads(runs)]
        rows.append(
            [f"`{executor}`", *cells.times([run["seconds"] for run in runs]), *parts, *cells.times(_ours(runs)), *told]
        )
    whole = ["`--on`", "whole command, s (median)", "all runs", "spread", "trials", "as many empty jobs"]
    ours = ["the rest is ours (median)", "all runs", "spread", "a job", f"{MOST:.0%} of trials from", "others"]
    images = f"images over {data['over']}" if data.get("over") else "small images"
    head = f"### Executors: {data['jobs']} {images}, judged one at a time\n\n"
    return head + cells.table([*whole, *ours], rows)


def goals(data: OverheadData) -> Iterator[Goal]:
    """Of each executor: what it costs more than one machine, less its own scheduling, with trials as long as these."""
    executors = dict(_executors(data))
    alone = middle(_ours(executors.pop("local"))) if "local" in executors else 0.0
    for executor, runs in executors.items():
        work = middle([run["work"] for run in runs])
        part = (middle(_ours(runs)) - alone) / work
        what = f"`fleet run --on {executor}` beside `--on local`, trials of {work / data['jobs']:.1f} s"
        yield cells.ratio(what, f"<= {MOST:.0%} of them", f"{max(part, 0):.0%}", part <= MOST, runs)


def _ours(runs: Sequence[OverheadRun]) -> list[float]:
    return [run["seconds"] - run["work"] - run["empty"] for run in runs]


def _executors(data: OverheadData) -> list[tuple[str, list[OverheadRun]]]:
    """The runs of each, in the order in which they were first measured."""
    names = dict.fromkeys(run["executor"] for run in data["runs"])
    return [(name, [run for run in data["runs"] if run["executor"] == name]) for name in names]
