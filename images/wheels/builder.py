"""Compiles packages that are published as source only, once, into wheels that any image of the same key takes.

A recipe says everything that a wheel depends on; its hash is the wheel's key. The suite judges what comes out of the
builder before the wheel cache takes it.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from images.config.facts import Facts
from images.config.schema import Matrix
from images.context import base_images
from images.context.base_images import AcquiredBase
from images.context.hosting import HostSettings
from images.context.render import Context
from images.engine import ContainerSpec, Engine
from images.engine.buildkit import BuildEvent, LogLine
from images.engine.failures import BuildFailed
from images.engine.progress import Progress
from images.errors import Problem, UserError
from images.planning.image import Image, Pin
from images.wheels.audit import judge_wheel, wheel_record
from images.wheels.builder_context import BuilderInputs, context
from images.wheels.cache import CachedWheel, WheelCache, wheel_finder
from images.wheels.compile_errors import explained
from images.wheels.prebuilt import FindWheel
from images.wheels.recipe import BaseCompilers, Recipe, beside, for_base, jobs_for, no_nvcc, recipe_for

_NINJA = re.compile(r"\s*\[(?P<done>\d+)/(?P<all>\d+)\] ")
_STEP = "/run/recipe/compile.sh"


@dataclass(frozen=True, kw_only=True)
class WheelOptions:
    """How to build wheels, from the command line."""

    out: Path
    """Logs go to OUT/wheels/NAME/."""
    facts: Facts
    cache: WheelCache
    jobs: int = 0
    """Compilers at once; 0: what cores and memory allow."""
    recompile: bool = False
    """Compile what is in the cache already, too."""
    sdists: Path | None = None
    """A folder with source archives, for machines that reach no index."""
    pinned_bases: Mapping[str, str] = field(default_factory=dict)
    base: str = base_images.AUTO
    """`auto`, or a custom base: its wheels are for images on that very base."""
    wheelhouse: Path | None = None
    """A folder with the wheels that build wheels, for `offline`."""
    offline: bool = False
    """No step reaches a network."""


@dataclass(frozen=True, kw_only=True)
class BuiltWheel:
    """One wheel that was asked for."""

    recipe: Recipe
    cached: CachedWheel
    compiled: int
    """Objects compiled by this call."""
    from_cache: int
    """Objects that an earlier call, one that was interrupted say, had finished."""
    seconds: float
    """0: it was in the wheel cache."""

    def __str__(self) -> str:
        size = f"{self.cached.record['bytes'] / 1e6:.1f} MB"
        if not self.seconds:
            return f"{self.recipe.key}: taken from the wheel cache, 0 compilations ({size}, {self.cached.wheel})"
        counts = f"{self.compiled} objects compiled, {self.from_cache} from earlier runs"
        return f"{self.recipe.key}: {counts}, in {self.seconds:.0f} s ({size}, {self.cached.wheel})"


def wheel_builder(
    engine: Engine, matrix: Matrix, options: WheelOptions, host: HostSettings, progress: Progress
) -> FindWheel:
    """A finder that compiles what the wheel cache lacks and nobody else publishes.

    The finder raises UserError for a required pin that can't be compiled. An optional one is left out with a warning.
    """
    look = wheel_finder(matrix, options.cache, lambda image: read_base_compilers(engine, image, options.base))
    one_at_a_time = threading.Lock()

    def find(image: Image, pin: Pin) -> Path | None:
        if cached := look(image, pin):
            return cached
        row = pin.extensions or pin.name
        if row not in matrix.sources or any(one.name == pin.name for one in image.prebuilt):
            return None
        try:
            wanted = recipe_for(image, row, matrix)
        except UserError as error:
            if not (pin.optional or pin.extensions):
                raise
            progress.say(str(image.name), error.problems[0].cause, "yellow")
            return None
        with one_at_a_time:  # builds beside each other may ask for the same wheel
            return build_wheel(engine, image, wanted, options, host, progress).cached.wheel

    return find


@dataclass(frozen=True, kw_only=True)
class _Compilation:
    """One wheel that is being compiled."""

    engine: Engine
    image: Image
    recipe: Recipe
    options: WheelOptions
    host: HostSettings
    progress: Progress

    @property
    def label(self) -> str:
        return f"{self.image.name} {self.recipe.package}"

    @property
    def tag(self) -> str:
        return f"truetag-wheel:{self.recipe.key}"

    @property
    def log(self) -> Path:
        return self.options.out / "wheels" / str(self.image.name) / f"{self.recipe.package}.log"

    @property
    def jobs(self) -> int:
        """Compilers at once."""
        return self.options.jobs or jobs_for(self.recipe, self.engine.facts.cpus, self.engine.facts.memory)

    def warn(self, text: str) -> None:
        self.progress.say(self.label, text, "yellow")


def build_wheel(
    engine: Engine, image: Image, wanted: Recipe, options: WheelOptions, host: HostSettings, progress: Progress
) -> BuiltWheel:
    """The wheel of a recipe for an image: taken from the wheel cache, else compiled, judged and stored there.

    Raises UserError: it can't be compiled here, it did not compile, it does not keep what it was asked for.
    """
    start = time.monotonic()
    wanted = for_base(read_base_compilers(engine, image, options.base), wanted)
    job = _Compilation(engine=engine, image=image, recipe=wanted, options=options, host=host, progress=progress)
    cached = options.cache.find(wanted.key, job.warn)
    if cached and not options.recompile:
        return BuiltWheel(recipe=wanted, cached=cached, compiled=0, from_cache=0, seconds=0)
    _require_provider(engine, image, wanted, options.facts)
    base = _acquire_base(job)
    try:
        any_compiled = _compile(job, _context(job, base))
        done, content = _fetch(engine, job.tag)
        verdict = judge_wheel(engine, job.tag, image, wanted, content, options.facts, job.log)
    finally:
        engine.remove(job.tag, force=True)
    seconds = time.monotonic() - start
    record = wheel_record(wanted, done, verdict, base.digest, job.jobs, seconds)
    cached = options.cache.store(wanted.key, done["wheel"], content, record)
    progress.finish(job.label, f"kept as {cached.wheel}")
    return _built(wanted, cached, done["objects"], any_compiled, seconds)


def _acquire_base(job: _Compilation) -> AcquiredBase:
    """The base, compared with the pins of torch's layer: nothing else is installed beside the new wheel."""
    return base_images.acquire_for(
        job.engine,
        replace(job.image, pins=beside(job.image)),
        job.options.base,
        pinned=job.options.pinned_bases,
        host=job.host,
        say=job.warn,
    )


def _context(job: _Compilation, base: AcquiredBase) -> Context:
    options = job.options
    inputs = BuilderInputs(
        host=job.host.files(),
        jobs=job.jobs,
        sdists=options.sdists,
        wheelhouse=options.wheelhouse,
        offline=options.offline,
    )
    return context(job.image, job.recipe, base_images.base_context(base), inputs)


def _built(
    recipe: Recipe, cached: CachedWheel, objects: Mapping[str, int], any_compiled: bool, seconds: float
) -> BuiltWheel:
    """Counts of objects: where the engine had the whole step cached, none was compiled by this call."""
    compiled, finished = objects["compiled"], objects["from_cache"]
    return BuiltWheel(
        recipe=recipe,
        cached=cached,
        compiled=compiled if any_compiled else 0,
        from_cache=finished if any_compiled else finished + compiled,
        seconds=seconds,
    )


def read_base_compilers(engine: Engine, image: Image, reference: str) -> BaseCompilers | None:
    """The compilers of a custom base; None for `auto`. Raises UserError if they can't be read."""
    if reference == base_images.AUTO:
        return None
    info = engine.find(reference) or engine.pull(reference)
    nvcc = f"{image.toolkit_home}/bin/nvcc"
    script = f'echo "$(g++ -dumpversion 2>/dev/null)"; [ ! -x {nvcc} ] || {nvcc} --version | tail -n 1'
    spec = ContainerSpec(reference, ["sh", "-c", script], name=f"{reference} (reading its compilers)")
    with engine.container(spec) as box:
        done = box.run(timeout=300)
    gcc, _, said = done.stdout.partition("\n")
    return BaseCompilers(digest=info.id, gcc=int(gcc.partition(".")[0] or 0), nvcc=said.strip())


def _require_provider(engine: Engine, image: Image, wanted: Recipe, facts: Facts) -> None:
    """Raises UserError unless this machine can have the nvcc, and it goes with the base's gcc."""
    newest = facts.cuda[wanted.toolkit].gcc_max if wanted.toolkit else wanted.gcc
    if wanted.gcc > newest:
        cause = f"nvcc {wanted.toolkit} accepts gcc up to {newest}, {wanted.base} has gcc {wanted.gcc}"
        raise UserError(
            Problem(where=str(image.name), cause=cause, then="take an image on another base, or newer CUDA")
        )
    if wanted.provider != "image":
        return
    (reference,) = wanted.parts
    if engine.find(reference) is None and engine.registry_digest(reference) is None:
        raise no_nvcc(image, f"it comes from {reference}, and no registry answers")


def _compile(job: _Compilation, files: Context) -> bool:
    """Whether anything was compiled: a step that the engine has cached compiles nothing."""
    job.progress.say(job.label, f"compiling {job.recipe.key}, {job.jobs} at once", "dim")
    network = job.host.network(local=job.engine.facts.local, offline=job.options.offline)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    shown = job.progress.job(job.label)
    with job.log.open("w", encoding="utf-8", buffering=1) as stream:

        def on_event(event: BuildEvent) -> None:
            shown(event)
            if isinstance(event, LogLine):
                stream.write(f"{event.text}\n")
                if counted := _NINJA.match(event.text):
                    job.progress.say(job.label, f"object {counted['done']} of {counted['all']}", "dim")

        try:
            result = job.engine.build(files, job.tag, network=network, on_event=on_event, redact=job.host.redact)
        except BuildFailed as failed:
            if _STEP not in failed.step:
                raise
            problem = explained(job.recipe, job.log.read_text(encoding="utf-8").splitlines(), failed, job.log)
            raise UserError(problem, code=1) from failed
    return any(_STEP in step.name and not step.cached for step in result.steps)


def _fetch(engine: Engine, tag: str) -> tuple[dict[str, Any], bytes]:
    """The builder's record, and the wheel."""
    with engine.container(ContainerSpec(tag, ["true"])) as container:
        done: dict[str, Any] = json.loads(container.get_file("/wheel/record.json"))
        return done, container.get_file(f"/wheel/{done['wheel']}")
