"""From a registry to the first training step: pull until unpacked, start, import, one step on the CPU.

Empty engines of several versions pull, in networks of their own with links of several speeds, from a registry over the
files that `delivery_push` put there. All of it is one run, so any two values make a ratio. Before each pull the
registry's files of the image are read once: whether they come from the disk is then not left to what ran before.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from images.bench import loopback, network
from images.bench.data import DeliveryData, DeliveryGap, DeliveryRun
from images.bench.empty_engine import OWN, EmptyEngine, empty_engine
from images.bench.network import LINKS, LOOPBACK
from images.bench.parts import delivery_push
from images.bench.parts.base_pull import pulled
from images.bench.parts.delivery_push import VARIANTS, Variant
from images.bench.parts.session import SUBJECT, BenchmarkRun, retry_command
from images.bench.project_copy import project_copy
from images.bench.stats import there_and_back
from images.config.paths import TEMPLATES
from images.engine import ContainerSpec, Engine
from images.errors import Problem, UserError
from images.publish.compression import Compression
from images.registry.client import Registry
from images.registry.distribution import Descriptor
from images.registry.reference import Reference

PART = "delivery"
ENGINES = {"26.1": tuple(LINKS), "28.5": (LOOPBACK,), OWN: (LOOPBACK,)}
"""Engine -> the links that it pulls through."""
_ROOM = 40_000_000_000
"""Bytes of disk: images in two engines, and all sides in a registry."""
_LONGEST = 600.0
"""Seconds for a container until its first step."""
_READS_NO_ZSTD = "invalid tar header"
"""What an engine says that takes zstd for a tar (20.10; docs/publishing.md)."""
_CHUNK = 1 << 20


def delivery(bench: BenchmarkRun) -> DeliveryData:
    """Seconds of pushes, and from a registry to the first step, on each engine and link."""
    data: DeliveryData = {"image": SUBJECT, "images": {}, "pushes": [], "runs": [], "blocked": []}
    require_here(bench.engine.free_bytes())
    with project_copy(bench.engine, SUBJECT) as (project, image):
        store = project.root / "registry"
        store.mkdir()
        served = Served(loopback.program(store, bench.say), store)
        with loopback.serving(served.program, store) as host:
            delivery_push.fill(bench, project, image, (served.program, host), data)
        for number, (version, links) in enumerate(ENGINES.items()):
            pulls(bench, version, links, served, store.with_name(f"engine-{number}"), data)
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

    def read(self, digest: str) -> None:
        """Have a blob in the page cache, as far as there is room. Raises OSError."""
        kind, _, value = digest.partition(":")
        blob = self.folder / "data/docker/registry/v2/blobs" / kind / value[:2] / value / "data"
        with blob.open("rb", buffering=0) as stream:
            while stream.read(_CHUNK):
                """What was read is not looked at."""


def pulls(
    bench: BenchmarkRun, version: str, links: Sequence[str], served: Served, home: Path, data: DeliveryData
) -> None:
    """Add the runs of one engine, which keeps all it has in `home`, through each link; why there are none, too."""
    try:
        with (
            empty_engine(version, home, bench.host, bench.say) as empty,
            loopback.serving(served.program, served.folder) as host,
        ):
            for link in links:
                network.shape(link)
                name = f"{empty.engine.facts.version}{f', {OWN}' if version == OWN else ''}"
                _Puller(bench=bench, empty=empty, name=name, served=served, host=host, link=link, data=data).rounds()
    except (UserError, OSError) as error:
        note(bench, data, f"engine {version}", error)


def note(bench: BenchmarkRun, data: DeliveryData, what: str, error: Exception, *, expected: bool = False) -> None:
    """Say, and keep, what is not measured: an hour's other values count."""
    told = str(replace(error.problems[0], then="")) if isinstance(error, UserError) else repr(error)
    gap: DeliveryGap = {"what": what, "reason": bench.host.redact(told), "expected": expected}
    bench.say(f"{what} is not measured: {gap['reason']}")
    data["blocked"].append(gap)
    bench.keep(data)


def require_slower_than(link: str, size: int, seconds: float) -> None:
    """See that a pull of so many bytes took the time that its link needs for them. Raises UserError."""
    least = 0.9 * (size - network.BURST) * 8 / network.bits_per_second(link)
    if seconds < least:
        cause = f"passed {size / 1e6:.0f} MB in {seconds:.1f} s, which takes {least:.1f} s: it is not slowed down"
        then = f"see what `tc qdisc show dev lo` says there, then {retry_command(PART)}"
        raise UserError(Problem(where=f"the link of {link}", cause=cause, then=then), code=1)


@dataclass(frozen=True, kw_only=True)
class _Puller:
    """One engine on one link."""

    bench: BenchmarkRun
    empty: EmptyEngine
    name: str
    served: Served
    host: str
    link: str
    data: DeliveryData

    def rounds(self) -> None:
        """Every variant in each round. One that fails is not tried again."""
        there = {str(one): one for one in VARIANTS if one.side in self.data["images"]}
        failed: set[str] = set()
        for round_ in there_and_back(list(there), self.bench.repeat):
            for name in [one for one in round_ if one not in failed]:
                try:
                    self.data["runs"].append(self._run(there[name]))
                except (UserError, OSError, ValueError, LookupError) as error:
                    failed.add(name)
                    expected = there[name].compression is Compression.ZSTD and _READS_NO_ZSTD in str(error)
                    what = f"{name} on engine {self.name}, {self.link}"
                    note(self.bench, self.data, what, error, expected=expected)
                self.bench.keep(self.data)

    def _run(self, variant: Variant) -> DeliveryRun:
        engine, reference = self.empty.engine, variant.reference(self.host)
        there = Reference.parse(reference)
        with Registry(there.repository) as registry:
            layers = registry.get(there.identifier).layers
        self._settle(layers)
        used = self.empty.processor_seconds()
        try:
            pull = pulled(replace(self.bench, engine=engine), reference, layers, PART)
            used = self.empty.processor_seconds() - used
            require_slower_than(self.link, pull["bytes"], pull["seconds"])
            step = first_step(engine, reference)
            self.bench.say(
                f"{variant}, engine {self.name}, {self.link}: {pull['seconds']:.1f} s to pull,"
                f" {step.imported:.1f} to import, {step.stepped:.1f} to the first step"
            )
            return {
                "side": variant.side,
                "compression": variant.compression,
                "engine": self.name,
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

    def _settle(self, layers: Sequence[Descriptor]) -> None:
        """What was written before is no part of a pull, and the registry's disk is none either."""
        os.sync()
        for layer in layers:
            self.served.read(layer.digest)


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
