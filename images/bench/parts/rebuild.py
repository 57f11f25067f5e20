"""Rebuilds after a small pin moved: ours by the command line, the conventional image in the engine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from images.bench import accounting
from images.bench.builder import Builder, How
from images.bench.contexts import conventional_context
from images.bench.data import RebuildData, RebuildRun
from images.bench.parts.session import SUBJECT, BenchmarkRun, base_of, load_around, retry_command, step_times
from images.bench.project_copy import ProjectCopy, project_copy
from images.bench.stats import turns
from images.config import paths
from images.context.render import Context
from images.engine import Engine
from images.errors import Problem, UserError
from images.locking import lock_file
from images.locking.lock_file import Lock
from images.locking.uv import Package
from images.planning.image import Image

MOVED = "liger-kernel"
"""The small pin that moves."""


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """The image that is rebuilt, and its lock before the pin moves."""

    bench: BenchmarkRun
    image: Image
    locked: Lock


def rebuild(bench: BenchmarkRun) -> RebuildData:
    """Seconds to rebuild when one small pin has moved, of ours (validated, too) and of the conventional image."""
    with project_copy(bench.engine, SUBJECT) as (project, image):
        subject = _Subject(bench=bench, image=image, locked=lock_file.read(image, project.root / "locks"))
        others = _other_versions(subject.locked.versions(image.layers)[MOVED])
        project.build(image)
        before = bench.engine.inspect(str(image.name)).layers
        with bench.baseline(project, base_of(project, image)) as baseline, bench.builder() as builder:
            conventional = _Conventional(subject=subject, builder=builder, base=baseline.run_id)
            conventional.prepare()
            measured: dict[str, Callable[[Package], RebuildRun]] = {
                "ours": lambda package: _ours(subject, project, package, before),
                "conventional": conventional.rebuilt,
            }
            runs = [
                measured[side](others[number % len(others)])
                for number, round_ in enumerate(turns(list(measured), bench.repeat))
                for side in round_
            ]
    return {"image": SUBJECT, "moved": MOVED, "runs": runs}


def _ours(subject: _Subject, project: ProjectCopy, package: Package, before: Sequence[str]) -> RebuildRun:
    """Move the pin in the matrix and in the lock, and build by the command line: until the image has its name."""
    bench, image = subject.bench, subject.image
    project.change({"stacks": {str(image.name.torch): {package.name: package.version}}})
    project.lock(project.image(str(image.name)), subject.locked, {package.name: package})
    with load_around() as load, watched(bench.engine, f"{image.name}-candidate") as seen:
        usage = project.build(image)
    built = json.loads((project.out / str(image.name) / "build.json").read_text())
    changed = accounting.changed(before, built["layers"])
    sizes = dict(zip(built["layers"], built["layer_bytes"], strict=False))
    made = [step["name"] for step in built["steps"] if not step["cached"] and "] RUN" in step["name"]]
    bench.say(f"{package.name} {package.version}: built in {seen[0]:.1f} s, validated in {usage.seconds:.1f} s")
    return {
        "side": "ours",
        "to": package.version,
        "seconds": round(seen[0], 2),
        "in_engine": built["seconds"],
        "validated": round(usage.seconds, 2),
        "layers_changed": len(changed),
        "bytes_changed": sum(sizes[digest] for digest in changed if digest in sizes),
        "steps_run": [name[:80] for name in made],
        "peak": usage.peak,
        "load": load,
    }


@dataclass(kw_only=True)
class _Conventional:
    """The conventional image; Debian's packages and pip are in the build cache, as on the day before."""

    subject: _Subject
    builder: Builder
    base: str
    """Reference of the baseline image."""
    before: Sequence[str] = ()
    """Its layers before the pin moved."""

    def prepare(self) -> None:
        """Fill the build cache, and build the image before the pin moves."""
        self.builder.build(self._context(self.subject.locked), self.builder.run_id, How(target="system"))
        self.subject.bench.engine.untag(self.builder.run_id)
        _, self.before = self._built(self.subject.locked)

    def rebuilt(self, package: Package) -> RebuildRun:
        """Build it with another version of the package in its requirements file."""
        locked = self.subject.locked
        light = tuple(package if one.name == package.name else one for one in locked.layers["light"])
        found, layers = self._built(replace(locked, layers={**locked.layers, "light": light}))
        found["layers_changed"] = len(accounting.changed(self.before, layers))
        return found

    def _built(self, locked: Lock) -> tuple[RebuildRun, Sequence[str]]:
        """Build the image on what the cache has of it, and forget it: what was measured, and its layers."""
        bench = self.subject.bench
        with self.builder.nothing_new_kept(), load_around() as load:
            result = self.builder.build(self._context(locked), self.builder.run_id)
            layers = bench.engine.inspect(result.image_id).layers
        bench.say(f"the conventional image rebuilt: {result.seconds:.1f} s")
        seconds = round(result.seconds, 2)
        run = RebuildRun(
            side="conventional", seconds=seconds, load=load, steps=step_times(result), layers_changed=len(layers)
        )
        return run, layers

    def _context(self, locked: Lock) -> Context:
        return conventional_context(self.subject.image, locked, self.base, self.subject.bench.host.files())


@contextmanager
def watched(engine: Engine, name: str) -> Iterator[list[float]]:
    """Gets the seconds from here until an image of that name is in the engine.

    Raises UserError if none ever was, and what the engine raised when it was asked.
    """
    seen: list[float] = []
    over = threading.Event()
    engine.untag(name)
    start = time.monotonic()

    def look() -> None:
        while not seen and not over.wait(0.1):
            if engine.find(name):
                seen.append(time.monotonic() - start)

    with ThreadPoolExecutor(max_workers=1) as pool:
        watching = pool.submit(look)
        try:
            yield seen
        finally:
            over.set()
    watching.result()
    if not seen:
        then = f"{retry_command('rebuild')} measures it again"
        raise UserError(Problem(where=name, cause="was never seen in the engine", then=then), code=1)


def _other_versions(present: str) -> list[Package]:
    """The moved package at other versions, with hashes, as other locks of the project have it. Raises UserError."""
    found: dict[str, Package] = {}
    for file in sorted(paths.workspace().locks.glob("*/light.txt")):
        for package in lock_file.parse_requirements(file.read_bytes(), str(file)):
            if package.name == MOVED and package.version != present:
                found[package.version] = package
    if not found:
        then = "name another package as MOVED in images/bench/parts/rebuild.py"
        raise UserError(Problem(where=MOVED, cause="every lock has the same version of it", then=then))
    return list(found.values())
