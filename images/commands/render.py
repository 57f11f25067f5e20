"""`render`: build contexts on disk, for builders that are not this machine's engine."""

import json
from functools import partial
from typing import Annotated

import typer

from images.building import contexts, run_files
from images.building.contexts import BuildOptions
from images.commands import common
from images.commands.options import (
    BaseImage,
    MatrixFile,
    OutFolder,
    SomeSelectors,
    WheelFolder,
    require_writable,
)
from images.context import base_images
from images.context.hosting import host_settings
from images.errors import command
from images.locking import lock_file
from images.wheels import prebuilt


def render(
    selectors: SomeSelectors,
    baking: Annotated[
        bool,
        typer.Option(
            "--bake", help="Fetch official wheels, and write docker-bake.json: a target an image."
        ),
    ] = False,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="REGISTRY/REPOSITORY",
            help="With --bake: push there; else load the images.",
        ),
    ] = "",
    base: BaseImage = "auto",
    wheelhouse: WheelFolder = None,
    out: OutFolder = None,
    matrix: MatrixFile = None,
) -> None:
    """Write build contexts, for `docker build` or `docker buildx bake`.

    Builds, validates and names nothing: `validate NAME --tag` does the latter two once an image is there.
    """
    sources = common.sources(matrix)
    folder = require_writable(out or sources.workspace.out)
    options = BuildOptions(
        sources=sources,
        host=host_settings(),
        out=folder,
        base=base,
        wheelhouse=wheelhouse,
        compiled=prebuilt.wheel_finder(sources.matrix),
        fetch=None
        if baking
        else partial(contexts.fetch_nothing, "`render` fetches no wheel without --bake"),
    )
    pinned = base_images.pinned(sources.workspace.root)
    images = common.accepted(selectors, sources)
    for image in images:
        base_context = contexts.base_context(image.base, base, pinned)
        lock = lock_file.read(image, sources.workspace.locks)
        gathered, _, files = contexts.prepare(image, lock, base_context, options)
        for one, reason in gathered.missing.items():
            common.say(f"{image.name} lacks {reason}: {gathered.details[one]}")
        place, source = (
            folder / str(image.name),
            run_files.build_source(sources.workspace.root, lock),
        )
        run_files.write_context(files, place / "context")
        run_files.write_inputs(place, image, base_context, gathered, source)
        if not baking:
            build = f"DOCKER_BUILDKIT=1 docker build -t {image.local_name}-candidate {place / 'context'}"
            then = f"; then `{command('validate', str(image.name), '--tag')}` names it"
            common.talk.print(f"next: {build}{then}", soft_wrap=True, highlight=False)
    if baking:
        (folder / run_files.BAKE).write_text(
            json.dumps(run_files.bake(images, to), indent=1) + "\n"
        )
        common.talk.print(f"{folder / run_files.BAKE}: {common.counted(len(images), 'image')}")
        then = f"then `{command('validate', 'NAME', '--tag')}` validates and names each"
        common.talk.print(f"next: (cd {folder} && docker buildx bake); {then}", highlight=False)
