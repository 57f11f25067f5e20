"""The verb of Debian's security updates: `updates`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from images.building.build import Built, build_image
from images.building.options import BuildOptions
from images.commands import common, inventories, trials
from images.commands.inventories import ImageArguments
from images.commands.options import EngineUrl, ImageInputArguments, OneName, grouped, in_workspace
from images.config.matrix import Sources
from images.context.hosting import host_settings
from images.engine import Engine
from images.engine.progress import Progress
from images.errors import UserError, problem_of
from images.locking import lock_file
from images.planning.image import Image
from images.vulnerabilities import debian, inventory, updates
from images.vulnerabilities.inventory import Inventory
from images.vulnerabilities.updates import PackageChange, Rebuilt
from images.wheels import cache as wheel_cache
from validate.judging import Status

SUFFIX = "-updated"
"""Of a rebuild's name: it never takes the image's own."""


@dataclass(frozen=True, kw_only=True)
class UpdateArguments(ImageArguments):
    """Which image is looked at, and what is done about it."""

    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build it anew as NAME-updated, without a cache, and validate it.")
    ] = False
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Update proposals, evidence.", callback=in_workspace)
    ] = Path("out/updates")


@grouped
def updates_verb(name: OneName, wanted: UpdateArguments, inputs: ImageInputArguments, engine: EngineUrl = None) -> None:
    """Debian packages of an image that have security updates; with --rebuild, the image that takes them, validated."""
    sources = common.sources()
    (image,) = common.accepted([name], sources, exactly_one=True)
    before = inventories.find(str(image.name), wanted, engine)
    found = pending(before)
    for one in found:
        typer.echo(f"{image.name}  {one}")
    if not found:
        typer.echo(f"{image.name}  no package has a newer version in Debian's security archive")
        return
    rebuilt, failed = None, False
    if wanted.rebuild:
        with trials.open_engine(engine) as docker_engine, Progress() as progress:
            built, rebuilt = rebuild(docker_engine, image, _options(sources, wanted, inputs), (before, found), progress)
        failed = bool(built.withheld)
        _tell(image, rebuilt)
    place = wanted.out / str(image.name) / updates.LOG
    log = updates.log(before, found, rebuilt, _next(image, wanted, rebuilt, failed))
    write(place, log)
    typer.echo(f"{image.name}  update proposal: {place}")
    raise typer.Exit(1 if failed or rebuilt is None or rebuilt.left else 0)


def _options(sources: Sources, wanted: UpdateArguments, inputs: ImageInputArguments) -> BuildOptions:
    return BuildOptions(
        out=wanted.out,
        sources=sources,
        host=host_settings(),
        base=inputs.base,
        wheelhouse=inputs.wheelhouse,
        wheel_mirror=inputs.wheel_mirror,
        no_cache=True,
        compiled=wheel_cache.wheel_finder(sources.matrix, wheel_cache.default()),
        suffix=SUFFIX,
    )


def pending(before: Inventory) -> tuple[PackageChange, ...]:
    """What Debian's security archive has for an image. Raises UserError: no apt, no such suite, no network."""
    return updates.pending(debian.scan(before.of(inventory.DEB), common.say).findings)


def rebuild(
    engine: Engine,
    image: Image,
    options: BuildOptions,
    known: tuple[Inventory, Sequence[PackageChange]],
    progress: Progress,
) -> tuple[Built, Rebuilt]:
    """The rebuild as NAME-updated, and what it moved. `known`: the image's packages, and what is pending.

    Raises UserError where it can't be built.
    """
    before, found = known
    built = build_image(engine, image, lock_file.read(image, options.sources.workspace.locks), options, progress)
    after = inventories.of_engine(engine, built.info.id, str(image.name))
    passed = len(built.verdict.of(Status.PASS))
    sentence = f"withheld: {built.withheld}" if built.withheld else f"validated, {passed} claims PASS"
    changes = updates.changes(before, after, found)
    return built, Rebuilt(digest=built.info.id, sentence=sentence, changes=changes, left=pending(after))


def _tell(image: Image, rebuilt: Rebuilt) -> None:
    for one in rebuilt.changes:
        typer.echo(f"{image.name}{SUFFIX}  {one}")
    typer.echo(f"{image.name}{SUFFIX}  {rebuilt.digest[:19]}  {rebuilt.sentence}")


def _next(image: Image, wanted: UpdateArguments, rebuilt: Rebuilt | None, failed: bool) -> list[str]:
    """The commands that finish it."""
    name = str(image.name)
    if rebuilt is None:
        return [f"`nox -s updates -- {name} --rebuild`"]
    if failed:
        return [f"read {wanted.out / (name + SUFFIX)}/report.md: the rebuild did not pass"]
    folder = wanted.out / f"{name}{SUFFIX}"
    publish = f"`nox -s publish -- {name} --image {name}{SUFFIX} --attestation {folder} --to REPOSITORY`"
    renew = "renew the base (`python -m tools.pin`), and rebuild once more" if rebuilt.left else ""
    return [publish, *([renew] if renew else [])]


def write(path: Path, text: str) -> None:
    """A proposal, in a folder that is made for it. Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise UserError(problem_of(error, str(path)), code=1) from None
