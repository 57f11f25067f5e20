"""The verb `build`: build images on this machine's Docker engine and validate them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from images.building import earlier_run, naming
from images.building.build import Built, build_all
from images.building.contexts import BuildOptions
from images.commands import common
from images.commands.options import (
    Again,
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
from images.config.matrix import Sources
from images.context.base_images import AUTO
from images.context.hosting import HostSettings, host_settings
from images.context.labels import LABELS
from images.engine import Engine, private_engine
from images.engine.progress import Progress
from images.errors import Problem, UserError, command, wrong
from images.hardware.inventory import GpuMode
from images.locking import lock_file
from images.planning.image import Image
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
    again: Again = False,
    base: BaseImage = "auto",
    wheelhouse: WheelFolder = None,
    offline: Offline = False,
    everything: Passed = False,
    engine: EngineUrl = None,
    out: OutFolder = None,
    matrix: MatrixFile = None,
) -> None:
    """Build images and validate them; what fails gets no name.

    An image gets its name only if no claim failed and each probe ran to its end. Until then it is
    NAME-candidate. If nothing has changed since the last run, its evidence is judged again.
    """
    sources = common.sources(matrix)
    folder = require_writable(out or sources.workspace.out)
    images = common.select_accepted(selectors, sources)
    locked = lock_file.read_all(images, sources.workspace.locks)
    host = host_settings()
    _print_warnings(images, host)

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
            reuse=not again,
            compare=common.compare_others(docker_engine, sources),
        )
        _tell_sizes(docker_engine, images, sources, offline=offline)
        find_wheel = _wheel_finder(docker_engine, images, options, progress, compiles=compile_)
        options = replace(options, compiled=find_wheel)
        results = build_all(docker_engine, locked, options, progress, jobs)

    problems: list[Problem] = []
    for result in results:
        if isinstance(result, UserError):
            problems += result.problems
            continue

        common.show(report.lines(result.verdict, everything=everything))
        if result.is_reused:
            common.show([f"{result.tag} was {result.measured}; {earlier_run.AGAIN}"])
        page = f"{folder / result.name}/report.md"
        # `withheld` says why the image does not get its name; empty: it has it.
        if result.withheld:
            problems.append(_problem_without_name(result, page))
        else:
            common.show(_describe_named_image(result, page, sources))
    if problems:
        raise UserError(problems, code=1)


def _print_warnings(images: Sequence[Image], host: HostSettings) -> None:
    """Print what is doubtful about the images to build, and about the settings of this machine."""
    for image in images:
        for text in image.warnings:
            common.say(f"{image.name}: warning: {text}")
    for warning in host.warnings:
        common.say(f"warning: {warning}")
    if any(image.warnings for image in images):
        # No way out is promised: most silent faults have none, and many warnings are for knowledge.
        common.say("Warnings do not stop the build.")


def _describe_named_image(result: Built, page: str, sources: Sources) -> list[str]:
    """Return what to tell of an image that was built and has its name; `page` is its report."""
    lines = [
        f"{result.tag} is validated as far as this machine can: {page}",
        f"{result.tag}: {_recorded_gpu_runs(result, sources)}",
    ]
    # The image has the matrix's name for it, which says nothing of this base.
    other_base = result.verdict.other_base
    if other_base:
        lines.append(
            f"{result.tag} stands on {other_base} (--base), and not on the base "
            "that the matrix names"
        )
    return lines


def _problem_without_name(result: Built, page: str) -> Problem:
    """Return the problem that a built image does not get its name; `page` is its report."""
    cause = f"{result.withheld}: the image gets no name and stays {result.tag}-candidate"
    then = naming.next_step(result.verdict, page, f"build again: `{command('build', result.name)}`")
    return Problem(where=result.name, cause=cause, then=then)


def _recorded_gpu_runs(result: Built, sources: Sources) -> str:
    """Return a sentence about the recorded runs of the gpu tier on an image that was just built."""
    # Imported here, as only a build that ends well needs it.
    from images.site import runs, status

    name = result.info.labels[f"{LABELS}.image"]
    recorded = runs.recorded_runs([sources.workspace.results])
    runs_of_image = [run for run in recorded if run.image == name]
    sentence, _ = status.compare_build(runs_of_image, result.info.digest, result.payload)
    return sentence


def _tell_sizes(
    engine: Engine, images: Sequence[Image], sources: Sources, *, offline: bool
) -> None:
    """Print the size of each image that the engine does not have yet, before it is downloaded.

    The size is that of the newest recorded build of the name. Of some names none is recorded.
    `offline`: nothing is downloaded, and nothing is said of it.
    """
    # Imported late: other verbs and builds without a lock end before this, and start sooner so.
    from images.site import records

    lines = records.read(sources.workspace.results)
    for image in images:
        if engine.find(image.local_name):
            continue
        size = records.newest_size(lines, str(image.name))
        recorded = f"{size / 1e9:.1f} GB in its last recorded build" if size else "not recorded"
        download = "" if offline else "packages that are not in the build cache are downloaded; "
        common.tell(f"{image.name}: {download}size of the image, unpacked: {recorded}")


def _wheel_finder(
    engine: Engine,
    images: Sequence[Image],
    options: BuildOptions,
    progress: Progress,
    *,
    compiles: bool,
) -> FindWheel:
    """Return a function that finds the wheel of a package which is published as source only.

    That function gets an image and a package, and returns the wheel's file; None if there is none.
    It looks into the cache of compiled wheels and, with `compiles` (--compile), compiles what the
    cache lacks. For images on a user's own base it finds nothing; with `compiles`, UserError is
    raised for these.
    """
    # Wheels are compiled for Debian's and Ubuntu's bases. They need not run on another one.
    is_custom_base = options.base != AUTO or any(image.base.custom for image in images)
    if is_custom_base and compiles:
        then = (
            "give the command without --compile; a wheel that you compile on your base yourself is "
            "taken from --wheelhouse FOLDER"
        )
        cause = (
            "wheels are compiled for the bases of this project only, and the image stands on "
            "another one"
        )
        raise wrong("--compile", cause, then)
    if is_custom_base:
        return lambda _image, _pin: None

    matrix = options.sources.matrix
    wheel_cache = prebuilt.compiled_wheels()
    if not compiles:
        return prebuilt.wheel_finder(matrix, wheel_cache)

    # Imported here, as most builds compile nothing.
    from images.wheels import builder

    wheel_options = builder.WheelOptions(
        out=options.out,
        facts=options.sources.facts,
        locks=options.sources.workspace.locks,
        cache=wheel_cache,
    )
    return builder.wheel_builder(engine, matrix, wheel_options, options.host, progress)
