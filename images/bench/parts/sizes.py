"""Bytes to pull and to keep: single images beside each other, and images that are pulled one after another."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from images.bench import accounting
from images.bench.accounting import Layer
from images.bench.builder import UNCACHED, UNMARKED, Builder
from images.bench.contexts import conventional_context
from images.bench.data import SizesData
from images.bench.layer_sizes import LayerSizes
from images.bench.parts.session import SUBJECT, BenchmarkRun
from images.bench.project_copy import PROFILE, ProjectCopy, project_copy
from images.building import uncached
from images.building.uncached import OwnLayer
from images.config import paths
from images.context.render import Context, content_of
from images.engine.buildkit import BuildResult
from images.host.hashing import sha256
from images.locking import lock_file
from images.planning import plan

ARCH = "sm90"
PULLED = 10
"""Images of the matrix that are pulled one after another."""


def pull(bench: BenchmarkRun) -> SizesData:
    """Bytes to pull and to keep: the image for all archs, for one, with NVIDIA's libraries pruned, conventional."""
    sizes = Sizes.open(bench)
    with project_copy(bench.engine, SUBJECT) as (project, image), bench.builder() as builder:
        base = bench.acquired(image)
        one_arch = project.image(f"{SUBJECT}-{ARCH}-{PROFILE}")
        sizes.as_built(builder, "all archs", project.rendered(image, base), base)
        sizes.as_built(builder, "one arch", project.rendered(one_arch, base), base)
        with bench.baseline(project, base) as baseline:
            locked = lock_file.read(image, project.root / "locks")
            conventional = conventional_context(image, locked, baseline.run_id, bench.host.files())
            sizes.as_built(builder, "conventional", conventional, baseline.run_id)
        pruned = project.with_nvidia_pruned().rendered(one_arch, base)
        sizes.as_built(builder, "one arch, NVIDIA's pruned", pruned, base)
        devel = project.rendered(project.image(f"{SUBJECT}-devel"), base)
        sizes.as_built(builder, "all archs, devel", devel, base)
    return sizes.data


def sequence(bench: BenchmarkRun) -> SizesData:
    """Bytes that each of the matrix's first images fetches into an engine that holds those before it.

    Each step of each image is run without build cache: a layer that two share came out the same twice.
    """
    sizes = Sizes.open(bench)
    locks = lock_file.states(one.image for one in plan.plan(bench.sources) if one.image)
    named = [name for name, status in locks.items() if status is lock_file.Status.PRESENT][:PULLED]
    with TemporaryDirectory() as folder, bench.builder() as builder:
        project = ProjectCopy(paths.RESOURCES, bench.engine, Path(folder))
        for name in named:
            image = project.image(name)
            base = bench.acquired(image)
            sizes.uncached(builder, name, project.rendered(image, base), base)
    sizes.data["order"] = named
    return sizes.data


@dataclass(frozen=True)
class Sizes:
    """Measures images one by one, and keeps the data in the file after each layer."""

    bench: BenchmarkRun
    data: SizesData

    @classmethod
    def open(cls, bench: BenchmarkRun) -> Sizes:
        """With what this run measured before it was interrupted."""
        empty: SizesData = {"images": {}, "layers": {}}
        return cls(bench, cast(SizesData, {**empty, **bench.so_far}))

    def as_built(self, builder: Builder, label: str, context: Context, base: str) -> None:
        """Measure an image as builds make it, from what the build cache has."""
        if made_from := self._unmeasured(label, context, base):
            with builder.nothing_at_all_kept():
                self._measure(builder.build(context, builder.run_id, UNMARKED), label, made_from)

    def uncached(self, builder: Builder, label: str, context: Context, base: str) -> None:
        """Measure an image that has nothing from the build cache, without the layer that keeps it apart from others."""
        if made_from := self._unmeasured(label, context, base):
            with builder.nothing_new_kept():
                built = builder.build(context, builder.run_id, UNCACHED)
                own = uncached.own_layer(builder.engine, built.image_id, base, builder.run_id)
                self._measure(built, label, made_from, own)

    def _unmeasured(self, label: str, context: Context, base: str) -> str:
        """What an image is made from, as a digest; empty where this run measured the same before."""
        made_from = digest(context, self.bench.engine.inspect(base).id)
        if label in self.data["images"] and self.data["images"][label]["made_from"] == made_from:
            self.bench.say(f"{label}: measured before, from the same files")
            return ""
        return made_from

    def _measure(self, built: BuildResult, label: str, made_from: str, own: OwnLayer | None = None) -> None:
        """`own`: a layer of the image that is none of what is measured."""
        engine, say = self.bench.engine, self.bench.say
        known = [*self.bench.known_layers, *map(Layer.from_json, self.data["layers"].values())]
        layers = LayerSizes(known, self._note).of(engine, built.image_id, but=own.digest if own else "")
        size = engine.inspect(built.image_id).size - (own.size if own else 0)
        self.data["layers"].update((layer.digest, layer.as_json()) for layer in layers)
        total = accounting.total(layers)
        say(f"{label}: {total.gzip / 1e6:.0f} MB with gzip, {total.zstd / 1e6:.0f} zstd, {size / 1e6:.0f} on disk")
        digests = [layer.digest for layer in layers]
        self.data["images"][label] = {"made_from": made_from, "bytes": size, "layers": digests}
        self.bench.keep(self.data)

    def _note(self, layer: Layer) -> None:
        self.bench.say(f"{layer.digest[:19]}: {layer.tar / 1e6:.0f} MB, {layer.gzip / 1e6:.0f} with gzip")
        self.data["layers"][layer.digest] = layer.as_json()
        self.bench.keep(self.data)


def digest(context: Context, base: str) -> str:
    """What an image is made from: its context, but for the host's settings, and the ID of the image below it."""
    content = hashlib.sha256(base.encode())
    for path, file in sorted(context.items()):
        if not path.startswith("host/"):
            content.update(f"{path}\0{sha256(content_of(file))}\0".encode())
    return content.hexdigest()[:16]
