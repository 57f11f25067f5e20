"""Ours measured beside the usual way."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from images.bench import results
from images.bench.data import PartData
from images.bench.parts import PARTS, UNASKED, BenchmarkRun
from images.commands import common, trials
from images.commands.options import EngineUrl
from images.context.hosting import host_settings
from images.engine.progress import Progress
from images.errors import Problem, UserError


def bench_verb(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PART", help=f"One of {', '.join(PARTS)} (repeat it).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where results go, part by part.")] = results.FILE,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Times that each timing is taken.")] = 3,
    engine: EngineUrl = None,
) -> None:
    """Measure builds, bytes and times, ours beside the conventional way. All PARTs take hours; each can be repeated.

    The part `start` needs a GPU, and is measured where it is named.
    """
    names = only or list(UNASKED)
    if unknown := [name for name in names if name not in PARTS]:
        then = f"name some of {', '.join(PARTS)}"
        raise UserError(Problem(where=" ".join(unknown), cause="is nothing that is measured", then=then))
    sources = common.sources()
    with trials.open_engine(engine) as docker_engine, Progress() as progress:
        bench = BenchmarkRun(
            engine=docker_engine,
            host=host_settings(),
            sources=sources,
            progress=progress,
            repeat=repeat,
            pinned_bases=trials.pinned_bases(),
        )
        for name in names:
            _measure(bench, name, out)
    common.talk.print(f"{out}; `nox -s generate` renews docs/benchmarks.md")


def _measure(bench: BenchmarkRun, name: str, out: Path) -> None:
    start, machine, commit = time.monotonic(), results.machine(bench.engine), results.revision()
    known = results.read(out)
    earlier = results.unfinished(known.get(name), machine, commit)
    began, before = (earlier["date"], earlier["took"]) if earlier else (results.now(), 0)
    so_far = earlier["data"] if earlier else {}

    def keep(data: PartData, finished: bool = False) -> None:
        seconds = before + time.monotonic() - start
        results.keep(out, name, results.entry(data, machine, commit, began=began, seconds=seconds, finished=finished))

    goes_on = f", goes on from {began}" if earlier else ""
    common.talk.print(f"[bold]{name}[/] (load {results.load_now():.1f} on {machine.cores} cores{goes_on})")
    layers = tuple(results.known_layers(known))
    keep(PARTS[name](replace(bench, so_far=so_far, known_layers=layers, keep=keep)), finished=True)
