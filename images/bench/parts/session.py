"""What every part has to work with, and what parts share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from images.bench import results
from images.bench.accounting import Layer
from images.bench.builder import Builder, open_builder
from images.bench.contexts import baseline_context
from images.bench.data import Load, PartData, StepTime
from images.bench.project_copy import ProjectCopy
from images.config.matrix import Sources
from images.context import base_images
from images.context.hosting import HostSettings
from images.engine import Engine
from images.engine.buildkit import BuildResult
from images.engine.failures import step_name
from images.engine.progress import Progress
from images.locking import lock_file
from images.planning.image import Image

SUBJECT = "cu130-torch211"
"""The image that is compared. CUDA 13 is the first whose devel toolkit is on the index: a devel base can be made."""
_SHORTEST = 0.1
"""Seconds below which a step is not listed."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkRun:
    """One run of the benchmark."""

    engine: Engine
    host: HostSettings
    sources: Sources
    progress: Progress
    repeat: int
    pinned_bases: Mapping[str, str] = field(default_factory=dict)
    so_far: PartData = field(default_factory=dict)
    """What this very run measured of the part before it was interrupted."""
    known_layers: Sequence[Layer] = ()
    """What any run measured."""
    keep: Callable[[PartData], None] = lambda _data: None
    """Puts what a long part has so far into the file: an interrupted run goes on there."""

    def say(self, text: str) -> None:
        self.progress.say("bench", text)

    @contextmanager
    def builder(self) -> Iterator[Builder]:
        """Ends any build of ours when it is left in a hurry."""
        try:
            with open_builder(self.engine, self.host, self.progress.job("bench")) as builder:
                yield builder
        except KeyboardInterrupt:
            self.engine.cancel()
            raise

    @contextmanager
    def baseline(self, project: ProjectCopy, base: str) -> Iterator[Builder]:
        """The builder of the baseline image, which is in place of NVIDIA's devel image on the conventional side.

        It is made from what the caches hold, and not measured. `base`: what our image stands on.
        """
        devel = project.image(f"{SUBJECT}-devel")
        context = project.rendered(devel, base)
        locked = lock_file.read(devel, project.root / "locks")
        with self.builder() as builder:
            builder.build(baseline_context(context, devel, locked, base), builder.run_id)
            builder.forget_steps()
            size = self.engine.inspect(builder.run_id).size
            self.say(f"the baseline image, in place of NVIDIA's devel base, has {size / 1e9:.2f} GB")
            yield builder

    def acquired(self, image: Image) -> str:
        """The reference of an image's base, which the engine has afterwards."""
        return base_images.acquire(
            self.engine, image.base, pinned=self.pinned_bases, host=self.host, say=self.say
        ).reference


@contextmanager
def load_around() -> Iterator[Load]:
    """What others used of the machine before what is inside, and the load averages around it."""
    load = Load(busy=results.busy_now(), before=results.load_now())
    yield load
    load["after"] = results.load_now()


def step_times(result: BuildResult) -> list[StepTime]:
    return [
        StepTime(name=step_name(step.name, 120), seconds=round(step.seconds, 2), cached=step.cached)
        for step in result.steps
        if step.seconds >= _SHORTEST
    ]


def base_of(project: ProjectCopy, image: Image) -> str:
    """What our image was built on, as FROM took it."""
    return str(json.loads((project.out / str(image.name) / "build.json").read_text())["base"]["reference"])


def retry_command(part: str) -> str:
    return f"`nox -s bench -- --only {part}`"
