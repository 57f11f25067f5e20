"""`build`: images built on this machine's engine, and validated."""

from dataclasses import replace
from typing import Annotated

import typer

from images.building.build import build_all
from images.building.contexts import BuildOptions
from images.commands import common
from images.commands.options import (
    BaseImage,
    EngineUrl,
    Gpus,
    MatrixFile,
    Offline,
    OutFolder,
    Passed,
    SomeSelectors,
    Tiers,
    WheelFolder,
    require_writable,
)
from images.context.base_images import AUTO
from images.context.hosting import host_settings
from images.context.labels import LABELS
from images.engine import Engine, private_engine
from images.engine.progress import Progress
from images.errors import Problem, UserError, wrong
from images.hardware.inventory import GpuMode
from images.locking import lock_file
from images.wheels import prebuilt
from images.wheels.prebuilt import FindWheel
from validate import report


def build(
    selectors: SomeSelectors,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Builds at once.")] = 1,
    tier: Tiers = None,
    gpus: Gpus = GpuMode.AUTO,
    strict: Annotated[
        bool, typer.Option("--strict", help="An optional package that is lacking is an error.")
    ] = False,
    compile_: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile first what is published as source only (`wheels` does it alone).",
        ),
    ] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every step anew.")] = False,
    base: BaseImage = "auto",
    wheelhouse: WheelFolder = None,
    offline: Offline = False,
    everything: Passed = False,
    engine: EngineUrl = None,
    out: OutFolder = None,
    matrix: MatrixFile = None,
) -> None:
    """Build images and validate them; what fails gets no name.

    An image gets its name only if no claim failed and each probe ran to its end. Until then it is NAME-candidate.
    """
    sources = common.sources(matrix)
    folder = require_writable(out or sources.workspace.out)
    images = common.accepted(selectors, sources)
    locked = [(image, lock_file.read(image, sources.workspace.locks)) for image in images]
    host = host_settings()
    for warning in (
        *(f"{image.name}: {text}" for image in images for text in image.warnings),
        *host.warnings,
    ):
        common.say(warning)
    with (
        private_engine.open_engine(engine, on_progress=common.say) as docker_engine,
        Progress() as progress,
    ):
        options = BuildOptions(
            sources=sources,
            host=host,
            out=folder,
            base=base,
            wheelhouse=wheelhouse,
            offline=offline,
            strict=strict,
            no_cache=no_cache,
            tiers=tier or (),
            gpus=gpus,
        )
        options = replace(
            options, compiled=_compiled(docker_engine, options, progress, compiles=compile_)
        )
        results = build_all(docker_engine, locked, options, progress, jobs)
    problems: list[Problem] = []
    for result in results:
        if isinstance(result, UserError):
            problems += result.problems
            continue
        page = f"{folder / result.name}/report.md"
        common.show(report.lines(result.verdict, everything=everything))
        if result.withheld:
            cause = f"{result.withheld}: it stays {result.tag}-candidate"
            then = f"read {page}; `docker run --rm -it {result.tag}-candidate` looks inside"
            problems.append(Problem(where=result.name, cause=cause, then=then))
        else:
            from images.site import records  # of a build that ends well

            runs = records.gpu_runs(
                records.read(sources.workspace.results), result.info.labels[f"{LABELS}.image"]
            )
            said, _ = records.of_this_build(runs, result.info.id, result.payload)
            common.show(
                [
                    f"{result.tag} is validated as far as this machine can: {page}",
                    f"{result.tag}: {said}",
                ]
            )
    if problems:
        raise UserError(problems, code=1)


def _compiled(
    engine: Engine, options: BuildOptions, progress: Progress, *, compiles: bool
) -> FindWheel:
    """Where wheels lie that were compiled here; with --compile, the builder makes what the wheel cache lacks."""
    matrix, wheel_cache = options.sources.matrix, prebuilt.compiled_wheels()
    if options.base != AUTO:
        if compiles:
            then = "compile it on that base yourself; --wheelhouse FOLDER takes the wheel"
            raise wrong("--compile", "compiles for the bases of the matrix only", then)
        return lambda _image, _pin: None
    if not compiles:
        return prebuilt.wheel_finder(matrix, wheel_cache)
    from images.wheels import builder  # most builds need none

    wheel_options = builder.WheelOptions(
        out=options.out,
        facts=options.sources.facts,
        locks=options.sources.workspace.locks,
        cache=wheel_cache,
    )
    return builder.wheel_builder(engine, matrix, wheel_options, options.host, progress)
