"""Ours measured beside the usual way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from images.bench import on_worker, results
from images.bench.data import PartData
from images.bench.parts import PARTS, UNASKED, BenchmarkRun
from images.commands import common, executors, trials
from images.commands.executors import ExecutorArguments
from images.commands.options import EngineUrl, grouped
from images.config import paths
from images.context.hosting import host_settings
from images.engine.progress import Progress
from images.errors import Problem, UserError
from images.fleet import config
from images.fleet.submission import Submission


@grouped
def bench_verb(
    workers: ExecutorArguments,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PART", help=f"One of {', '.join(PARTS)} (repeat it).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where results go, part by part.")] = results.FILE,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Times that each timing is taken.")] = 3,
    engine: EngineUrl = None,
) -> None:
    """Measure builds, bytes and times, ours beside the conventional way. All PARTs take hours; each can be repeated.

    The part `start` needs a GPU, and is measured where it is named.

    With --on slurm or --on ray a worker measures the part `sequence`, which counts bytes.
    """
    names = only or list(UNASKED)
    if unknown := [name for name in names if name not in PARTS]:
        then = f"name some of {', '.join(PARTS)}"
        raise UserError(Problem(where=" ".join(unknown), cause="is nothing that is measured", then=then))
    if workers.elsewhere:
        _require_possible(names, workers, engine)
        _measure_elsewhere(workers, out)
        _say_where(out)
        return
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
    _say_where(out)


def _say_where(out: Path) -> None:
    common.talk.print(f"{out}; `nox -s generate` renews docs/benchmarks.md")


def _require_possible(names: Sequence[str], workers: ExecutorArguments, engine: str | None) -> None:
    """Refuse what a worker can't measure, with the next command. Raises UserError with all of it."""
    others = [name for name in names if name != on_worker.PART]
    here = f"times belong to one machine: without --on; `--only {on_worker.PART}` counts bytes, on a worker, too"
    executors.require_none(
        {
            "parts " + ", ".join(others): (others, here),
            "--through": (workers.through, "leave it out: no image travels"),
        }
    )
    if engine:
        raise executors.no_engine_of(engine, workers.on)


def _measure_elsewhere(workers: ExecutorArguments, out: Path) -> None:
    """Have one worker measure the sequence, and put its entry into the file. Raises UserError."""
    fleet, commit, known = config.read(workers.file), results.revision(), results.read(out)
    if workers.on == "slurm":  # its workers have a checkout of their own: no job need wait for their refusal
        on_worker.require_no_changes(commit)
    layers = [on_worker.LayerRow(**layer.as_json()) for layer in results.known_layers(known)]
    job = on_worker.SequenceJob(commit=commit, bases=trials.pinned_bases(), layers=tuple(layers))
    executor = executors.executor(workers.on, paths.in_workspace(Path("out")), fleet)
    submission = Submission.new(fleet, executor, executors.tell)
    for ended in submission.ends([on_worker.placed(job, submission)]):
        result = on_worker.result_of(ended, submission.run)
        results.keep(out, on_worker.PART, on_worker.entry_of(result, commit))
        executors.tell(job.key, f"measured on {result.worker.node} in {result.seconds:.0f} s")


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
