"""From a registry to the first training step: pull until unpacked, start, import, one step on the CPU.

Empty engines of several versions pull, in networks of their own with links of several speeds, from a registry over the
files that `delivery_push` put there. All of it is one run, so any two values make a ratio.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from images.bench import loopback, network
from images.bench.data import DeliveryData, DeliveryRun
from images.bench.empty_engine import OWN, EmptyEngine, empty_engine
from images.bench.network import LINKS, LOOPBACK
from images.bench.parts import delivery_push
from images.bench.parts.base_pull import pulled
from images.bench.parts.delivery_push import VARIANTS, Variant
from images.bench.parts.session import SUBJECT, BenchmarkRun, retry_command
from images.bench.project_copy import project_copy
from images.bench.stats import turns
from images.config.paths import TEMPLATES
from images.engine import ContainerSpec, Engine
from images.errors import Problem, UserError
from images.registry.client import Registry
from images.registry.reference import Reference

PART = "delivery"
ENGINES = {"26.1": tuple(LINKS), "28.5": (LOOPBACK,), OWN: (LOOPBACK,)}
"""Engine -> the links that it pulls through."""
_ROOM = 40_000_000_000
"""Bytes of disk: images in two engines, and all sides in a registry."""
_LONGEST = 600.0
"""Seconds for a container until its first step."""


def delivery(bench: BenchmarkRun) -> DeliveryData:
    """Seconds of pushes, and from a registry to the first step, on each engine and link."""
    data: DeliveryData = {"image": SUBJECT, "images": {}, "pushes": [], "runs": [], "blocked": []}
    require_here(bench.engine.free_bytes())
    with project_copy(bench.engine, SUBJECT) as (project, image):
        store = project.root / "registry"
        store.mkdir()
        served = Served(loopback.program(store, bench.say), store)
        with loopback.serving(served.program, store) as host:
            delivery_push.fill(bench, project, image, host, data)
        for version, links in ENGINES.items():
            pulls(bench, version, links, served, data)
    return data


def require_here(free: int | None) -> None:
    """Raises UserError for an engine on another machine (`free` is None), or for too small a disk."""
    if free is None:
        cause, then = "is on another machine, and the registry on this one", "measure where it runs"
    elif free < _ROOM:
        cause = f"has {free / 1e9:.0f} GB free on its disk, and images and registry need {_ROOM / 1e9:.0f} GB"
        then = "remove images and build cache that nobody needs"
    else:
        return
    raise UserError(Problem(where="the engine", cause=cause, then=f"{then}, then {retry_command(PART)}"), code=1)


@dataclass(frozen=True)
class Served:
    """A registry's program and the folder that has its content."""

    program: str
    folder: Path


def pulls(bench: BenchmarkRun, version: str, links: Sequence[str], served: Served, data: DeliveryData) -> None:
    """Add the runs of one engine through each link; why there are none goes to `blocked`."""
    home = served.folder.with_name(f"engine-{len(data['runs'])}")
    try:
        with (
            empty_engine(version, home, bench.host, bench.say) as empty,
            loopback.serving(served.program, served.folder) as host,
        ):
            for link in links:
                network.shape(link)
                _Puller(bench, empty, host, link, data).rounds()
    except UserError as error:
        note(bench, data, f"engine {version}", error)


def note(bench: BenchmarkRun, data: DeliveryData, what: str, error: UserError) -> None:
    """Say, and keep, what is not measured."""
    reason = bench.host.redact(str(replace(error.problems[0], then="")))
    bench.say(f"{what} is not measured: {reason}")
    data["blocked"].append(f"{what}: {reason}")
    bench.keep(data)


@dataclass(frozen=True)
class _Puller:
    """One engine on one link."""

    bench: BenchmarkRun
    empty: EmptyEngine
    host: str
    link: str
    data: DeliveryData

    def rounds(self) -> None:
        """Every variant in each round, another one first each time. One that fails is not tried again."""
        there = {str(one): one for one in VARIANTS if one.side in self.data["images"]}
        failed: set[str] = set()
        for round_ in turns(list(there), self.bench.repeat):
            for name in [one for one in round_ if one not in failed]:
                try:
                    self.data["runs"].append(self._run(there[name]))
                except UserError as error:
                    failed.add(name)
                    version = self.empty.engine.facts.version
                    note(self.bench, self.data, f"{name} on engine {version}, {self.link}", error)
                self.bench.keep(self.data)

    def _run(self, variant: Variant) -> DeliveryRun:
        engine, reference = self.empty.engine, variant.reference(self.host)
        there = Reference.parse(reference)
        with Registry(there.repository) as registry:
            layers = registry.get(there.identifier).layers
        os.sync()  # what was written before is no part of it
        used = self.empty.processor_seconds()
        try:
            pull = pulled(replace(self.bench, engine=engine), reference, layers, PART)
            used = self.empty.processor_seconds() - used
            step = first_step(engine, reference)
            self.bench.say(
                f"{variant}, engine {engine.facts.version}, {self.link}: {pull['seconds']:.1f} s to pull,"
                f" {step.imported:.1f} to import, {step.stepped:.1f} to the first step"
            )
            return {
                "side": variant.side,
                "compression": variant.compression,
                "engine": engine.facts.version,
                "link": self.link,
                "image_id": engine.inspect(reference).id,
                "bytes": pull["bytes"],
                "seconds": pull["seconds"],
                "cpu": round(used, 2),
                "imported": round(step.imported, 2),
                "stepped": round(step.stepped, 2),
                "loss": step.loss,
                "load": pull["load"],
            }
        finally:
            engine.untag(reference)


@dataclass(frozen=True)
class FirstStep:
    """Seconds from the creation of a container until all is imported, and until a step is done; that step's loss."""

    imported: float
    stepped: float
    loss: float


def first_step(engine: Engine, reference: str) -> FirstStep:
    """Train one step in a new container of an image, on this machine. Raises UserError."""
    program = (TEMPLATES / "bench" / "first_step.py").read_text(encoding="utf-8")
    start = time.monotonic()
    with engine.container(ContainerSpec(reference, ["python3", "-c", program], read_only=False)) as container:
        finished = container.run(_LONGEST)
    if finished.exit.code:
        cause = f"no training step: {' '.join(finished.stderr.split())[-300:] or f'status {finished.exit.code}'}"
        then = f"`docker run --rm {reference} python3 -c ...` with templates/bench/first_step.py"
        raise UserError(Problem(where=reference, cause=cause, then=then), code=1)
    told = json.loads(finished.stdout.splitlines()[-1])
    return FirstStep(told["imported"] - start, told["stepped"] - start, told["loss"])
