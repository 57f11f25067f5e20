"""The pushes of the benchmark `delivery`: the engine's own, one thread a layer, and ours, on all cores.

On the loopback alone: compression takes longer than a link of 1 Gb/s takes for what comes out of it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images.bench import loopback
from images.bench.builder import UNMARKED, Builder
from images.bench.contexts import conventional_context
from images.bench.data import DeliveryData
from images.bench.parts.session import SUBJECT, BenchmarkRun, load_around
from images.bench.parts.sizes import ARCH
from images.bench.project_copy import PROFILE, ProjectCopy
from images.context.render import Context
from images.engine import ignore
from images.locking import lock_file
from images.planning.image import Image
from images.publish.compression import Compression
from images.publish.push import PushJob, Tally, push
from images.registry.client import Registry
from images.registry.reference import Repository

CONVENTIONAL, ALL_ARCHS, ONE_ARCH, PRUNED = "conventional", "all archs", "one arch", "one arch, NVIDIA's pruned"
BY_ENGINE, BY_US = "the engine", "truetag"
_REPOSITORIES = {CONVENTIONAL: "conventional", ALL_ARCHS: "ours", ONE_ARCH: "ours-arch", PRUNED: "ours-pruned"}


@dataclass(frozen=True)
class Variant:
    """One image in one compression: a tag of the registry."""

    side: str
    compression: Compression

    def __str__(self) -> str:
        return f"{self.side} ({self.compression})"

    def reference(self, host: str) -> str:
        return f"{host}/{_REPOSITORIES[self.side]}:{self.compression}"


VARIANTS = (
    Variant(CONVENTIONAL, Compression.GZIP),
    Variant(ALL_ARCHS, Compression.GZIP),
    Variant(ALL_ARCHS, Compression.ZSTD),
    Variant(ONE_ARCH, Compression.GZIP),
    Variant(ONE_ARCH, Compression.ZSTD),
    Variant(PRUNED, Compression.ZSTD),
)


def fill(
    bench: BenchmarkRun, project: ProjectCopy, image: Image, registry: tuple[str, str], data: DeliveryData
) -> None:
    """Build each side, push it into a registry (its program and `HOST:PORT`), and forget it."""
    one_arch = project.image(f"{SUBJECT}-{ARCH}-{PROFILE}")
    base = bench.acquired(image)
    pusher = Pusher(bench, *registry, project.root / "push", data)
    with bench.baseline(project, base) as baseline:
        locked = lock_file.read(image, project.root / "locks")
        pusher.side(CONVENTIONAL, conventional_context(image, locked, baseline.run_id, bench.host.files()))
    pusher.side(ALL_ARCHS, project.rendered(image, base))
    pusher.side(ONE_ARCH, project.rendered(one_arch, base))
    pusher.side(PRUNED, project.with_nvidia_pruned().rendered(one_arch, base))


@dataclass(frozen=True)
class Pusher:
    """Pushes sides into one registry. `cache`: room for layers on their way; nothing is remembered in it."""

    bench: BenchmarkRun
    program: str
    """Of registries beside that one."""
    host: str
    cache: Path
    data: DeliveryData

    def side(self, side: str, context: Context) -> None:
        """Build a side and push each of its variants; the one that the engine pushes, too, as often as the run says."""
        with self.bench.builder() as builder, builder.nothing_at_all_kept():
            built = builder.build(context, builder.run_id, UNMARKED)
            self.data["images"][side] = built.image_id
            for one in VARIANTS:
                if one.side == side:
                    self._push(builder, one)
            if side == ALL_ARCHS:
                self._compare(builder)

    def _push(self, builder: Builder, variant: Variant) -> None:
        place = Repository.parse(f"{self.host}/{_REPOSITORIES[variant.side]}")
        if variant.side == CONVENTIONAL:
            self._by_engine(builder, variant, place)
        else:
            self._by_us(builder, variant, place)
        self.bench.keep(self.data)

    def _compare(self, builder: Builder) -> None:
        """Push by the engine, and again by us for each further round, into registries that are gone afterwards."""
        by_us = [Variant(ALL_ARCHS, compression) for compression in (Compression.ZSTD, Compression.GZIP)]
        for number in range(self.bench.repeat):
            with self._registry() as other:
                self._by_engine(builder, Variant(ALL_ARCHS, Compression.GZIP), Repository.parse(f"{other}/engine"))
            for variant in by_us if number else ():
                with self._registry() as other:
                    self._by_us(builder, variant, Repository.parse(f"{other}/ours"))
            self.bench.keep(self.data)

    @contextmanager
    def _registry(self) -> Iterator[str]:
        with self._room() as folder, loopback.serving(self.program, folder) as host:
            yield host

    @contextmanager
    def _room(self) -> Iterator[Path]:
        """An empty folder, which is gone afterwards."""
        self.cache.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache) as folder:
            yield Path(folder)

    def _by_engine(self, builder: Builder, variant: Variant, place: Repository) -> None:
        engine, name = self.bench.engine, f"{place}:{variant.compression}"
        engine.tag(builder.run_id, name)
        try:
            with self._timed(variant, BY_ENGINE, place):
                engine.push(name)
        finally:
            engine.untag(name)

    def _by_us(self, builder: Builder, variant: Variant, place: Repository) -> None:
        engine = self.bench.engine
        info = engine.inspect(builder.run_id)
        tally = Tally(where=str(place), on_event=ignore)
        with self._room() as room, Registry(place) as target:
            job = PushJob(engine=engine, info=info, target=target, wanted=(variant.compression,), cache=room)
            with self._timed(variant, BY_US, place):
                ((_, manifest),) = push(job, tally)
                target.put(manifest, variant.compression)

    @contextmanager
    def _timed(self, variant: Variant, by: str, place: Repository) -> Iterator[None]:
        os.sync()  # what was built before is no part of it
        with load_around() as load:
            start = time.monotonic()
            yield
            seconds = time.monotonic() - start
        with Registry(place) as registry:
            size = sum(layer.size for layer in registry.get(variant.compression).layers)
        self.bench.say(f"{variant} pushed by {by}: {size / 1e6:.0f} MB in {seconds:.1f} s")
        self.data["pushes"].append(
            {
                "side": variant.side,
                "compression": variant.compression,
                "by": by,
                "seconds": round(seconds, 2),
                "bytes": size,
                "load": load,
            }
        )
