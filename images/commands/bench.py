"""Ours measured beside the usual way."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from images.bench import results
from images.bench.parts import PARTS, Bench
from images.commands import common
from images.commands.options import EngineUrl
from images.errors import Problem, UserError
from images.hosting import host_settings
from images.progress import Progress


def bench_verb(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PART", help=f"One of {', '.join(PARTS)} (repeat it).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where results go, part by part.")] = results.FILE,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Times that each timing is taken.")] = 3,
    engine: EngineUrl = None,
) -> None:
    """Measure builds, bytes and times, ours beside the conventional way. Takes half an hour; PARTs can be repeated."""
    names = only or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        then = f"name some of {', '.join(PARTS)}"
        raise UserError(Problem(where=" ".join(unknown), cause="is nothing that is measured", then=then))
    sources = common.sources()
    with common.open_engine(engine) as docker_engine, Progress() as progress:
        bench = Bench(
            engine=docker_engine,
            host=host_settings(),
            sources=sources,
            progress=progress,
            repeat=repeat,
            pinned_bases=common.pinned_bases(),
        )
        for name in names:
            _measure(bench, name, out)
    common.talk.print(f"{out}; `nox -s generate` renews docs/benchmarks.md")


def _measure(bench: Bench, name: str, out: Path) -> None:
    start, machine, commit = time.monotonic(), results.machine(bench.engine), results.revision()

    def keep(data: dict[str, Any]) -> None:
        results.keep(out, name, results.entry(data, machine, commit, time.monotonic() - start))

    common.talk.print(f"[bold]{name}[/] (load {results.load_now():.1f} on {machine.cores} cores)")
    keep(PARTS[name](replace(bench, part=name, known=results.read(out), keep=keep)))
