"""Builds from nothing: ours, the conventional image, and the lower bound of both."""

from __future__ import annotations

import os
from collections.abc import Callable

from images.bench import disk
from images.bench.builder import COLD, Builder
from images.bench.contexts import conventional_context
from images.bench.data import BuildRun, ColdData
from images.bench.lower_bound import lower_bound
from images.bench.parts.base_pull import base_pulls
from images.bench.parts.session import SUBJECT, BenchmarkRun, base_of, load_around, step_times
from images.bench.project_copy import ProjectCopy, project_copy, written_context
from images.bench.running import Usage
from images.bench.stats import turns
from images.context.render import Context
from images.locking import lock_file
from images.locking.lock_file import Lock
from images.planning.image import Image


def cold(bench: BenchmarkRun) -> ColdData:
    """Seconds from a context to an image, without build cache and without wheels, and of the lower bound."""
    with project_copy(bench.engine, SUBJECT) as (project, image), bench.builder() as builder:
        locked = lock_file.read(image, project.root / "locks")
        command = by_command(builder, project, image)
        ours = written_context(project.out / str(image.name) / "context")
        base = base_of(project, image)
        with bench.baseline(project, base) as baseline:
            size = bench.engine.inspect(baseline.run_id).size
            conventional = conventional_context(image, locked, baseline.run_id, bench.host.files())
            measured: dict[str, Callable[[], BuildRun]] = {
                "ours": lambda: _built(bench, "ours", ours),
                "conventional": lambda: _built(bench, "conventional", conventional),
                "lower bound": lambda: _lower_bound(bench, image, locked, project),
            }
            runs = [measured[side]() for round_ in turns(list(measured), bench.repeat) for side in round_]
            pulls = base_pulls(bench, baseline, base, project.root / "registry")
        packages = sum(len(locked.layers[layer]) for layer in (*image.layers, "toolkit"))
    return {
        "image": SUBJECT,
        "packages": packages,
        "baseline_bytes": size,
        "host_peak": command.peak,
        "runs": runs,
        **pulls,
    }


def by_command(builder: Builder, project: ProjectCopy, image: Image) -> Usage:
    """Build an image by the command line without build cache, validate it, and forget it."""
    project.add_own_layer(builder.run_id)
    with builder.nothing_at_all_kept():
        usage = project.build(image, "--no-cache")
        project.forget(image)
    return usage


def _built(bench: BenchmarkRun, side: str, context: Context) -> BuildRun:
    """One cold build by a builder of its own, which is cleared after it."""
    disk.rest(bench.engine, bench.say)
    with bench.builder() as builder, load_around() as load:
        result = builder.build(context, builder.run_id, COLD)
        info = bench.engine.inspect(result.image_id)
    bench.say(f"{len(info.layers)} layers, {info.size / 1e9:.2f} GB in {result.seconds:.1f} s")
    seconds = round(result.seconds, 2)
    return {"side": side, "seconds": seconds, "load": load, "bytes": info.size, "steps": step_times(result)}


def _lower_bound(bench: BenchmarkRun, image: Image, locked: Lock, project: ProjectCopy) -> BuildRun:
    disk.rest(bench.engine, bench.say)
    with load_around() as load:
        seconds = lower_bound(image, locked, project.root, os.environ)
    bench.say(f"the lower bound: {seconds:.1f} s")
    return {"side": "lower bound", "seconds": round(seconds, 2), "load": load, "steps": []}
