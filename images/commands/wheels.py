"""The verb `wheels`: compile packages that are published as source only, once."""

from pathlib import Path
from typing import Annotated

import typer

from images.commands import common
from images.commands.options import (
    EngineUrl,
    MatrixFile,
    OneName,
    OutFolder,
    require_writable,
)
from images.config.schema import Matrix
from images.context.hosting import host_settings
from images.engine import private_engine
from images.engine.progress import Progress
from images.errors import command, wrong
from images.planning.image import Image
from images.wheels import builder, prebuilt, recipe


def wheels(
    name: OneName,
    packages: Annotated[
        list[str] | None,
        typer.Argument(metavar="PACKAGE...", help="Which; default: all that the image pins."),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=0, help="Compilers at once; 0: cores and memory.")
    ] = 0,
    sdists: Annotated[
        Path | None,
        typer.Option("--sdists", metavar="FOLDER", help="Take source archives from here, by hash."),
    ] = None,
    engine: EngineUrl = None,
    out: OutFolder = None,
    matrix: MatrixFile = None,
) -> None:
    """Compile packages that are published as source only, once.

    What was compiled before is taken from the wheel cache, which `build` looks into as well.
    """
    sources = common.sources(matrix)
    folder = require_writable(out or sources.workspace.out)
    (image,) = common.select_accepted([name], sources, exactly_one=True)
    chosen = packages or _list_pinned_sources(name, image, sources.matrix)
    recipes = [recipe.recipe_for(image, package, sources.matrix) for package in chosen]
    options = builder.WheelOptions(
        out=folder,
        facts=sources.facts,
        locks=sources.workspace.locks,
        cache=prebuilt.compiled_wheels(),
        jobs=jobs,
        sdists=sdists,
    )
    with (
        private_engine.open_engine(engine, on_progress=common.say) as docker_engine,
        Progress() as progress,
    ):
        host = host_settings()
        built = []
        for wheel_recipe in recipes:
            wheel = builder.build_wheel(docker_engine, image, wheel_recipe, options, host, progress)
            built.append(wheel)
    for wheel in built:
        typer.echo(wheel)


def _list_pinned_sources(name: str, image: Image, matrix: Matrix) -> list[str]:
    """Return the packages of an image that are published as source only, so must be compiled.

    `name` is what the user calls the image. Raises UserError if it pins none.
    """
    pinned = []
    for package, source in matrix.sources.items():
        if image.pin(source.distribution or package):
            pinned.append(package)
    if not pinned:
        cause = (
            "the image pins none of the packages that `sources` in matrix.yaml has "
            f"({', '.join(matrix.sources)})"
        )
        then = (
            "name one of them, and its newest release is compiled: "
            f"`{command('wheels', name, 'PACKAGE')}`"
        )
        raise wrong(name, cause, then)
    return pinned
