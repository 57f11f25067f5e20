"""The verb of Debian's security updates: `updates`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from images.building import pipeline
from images.commands import common, inventories, trials
from images.commands.inventories import ImageArguments
from images.commands.options import EngineUrl, ImageInputArguments, OneName, grouped, in_workspace
from images.config.matrix import Sources
from images.context.hosting import host_settings
from images.engine.progress import Progress
from images.errors import UserError, problem_of
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
    found = updates.pending(debian.scan(before.of(inventory.DEB), common.say).findings)
    for one in found:
        typer.echo(f"{image.name}  {one}")
    if not found:
        typer.echo(f"{image.name}  no package has a newer version in Debian's security archive")
        return
    rebuilt, failed = None, False
    if wanted.rebuild:
        options = _options(sources, wanted, inputs)
        rebuilt, failed = _rebuild(image, options, engine, (before, found))
    place = wanted.out / str(image.name) / updates.LOG
    _write(place, updates.log(before, found, rebuilt, _next(image, wanted, rebuilt, failed)))
    typer.echo(f"{image.name}  update proposal: {place}")
    raise typer.Exit(1 if failed or rebuilt is None or rebuilt.left else 0)


def _options(sources: Sources, wanted: UpdateArguments, inputs: ImageInputArguments) -> pipeline.BuildOptions:
    return pipeline.BuildOptions(
        out=wanted.out,
        cache=common.cache(),
        facts=sources.facts,
        base=inputs.base,
        wheelhouse=inputs.wheelhouse,
        wheel_mirror=inputs.wheel_mirror,
        no_cache=True,
        pinned_bases=trials.pinned_bases(),
        compiled=wheel_cache.wheel_finder(sources.matrix, wheel_cache.default()),
        suffix=SUFFIX,
    )


def _rebuild(
    image: Image,
    options: pipeline.BuildOptions,
    engine: str | None,
    known: tuple[Inventory, tuple[PackageChange, ...]],
) -> tuple[Rebuilt, bool]:
    """The rebuild, and whether its name was withheld. Raises UserError where it can't be built."""
    before, found = known
    with trials.open_engine(engine) as docker_engine, Progress() as progress:
        built = pipeline.build(docker_engine, image, options, host_settings(), progress)
        after = inventories.of_engine(docker_engine, built.info.id, str(image.name))
    left = updates.pending(debian.scan(after.of(inventory.DEB), common.say).findings)
    passed = len(built.verdict.of(Status.PASS))
    sentence = f"withheld: {built.withheld}" if built.withheld else f"validated, {passed} claims PASS"
    changes = updates.changes(before, after, found)
    for one in changes:
        typer.echo(f"{image.name}{SUFFIX}  {one}")
    typer.echo(f"{image.name}{SUFFIX}  {built.info.id[:19]}  {sentence}")
    rebuilt = Rebuilt(digest=built.info.id, sentence=sentence, changes=changes, left=left)
    return rebuilt, bool(built.withheld)


def _next(image: Image, wanted: UpdateArguments, rebuilt: Rebuilt | None, failed: bool) -> list[str]:
    """The commands that finish it."""
    name = str(image.name)
    if rebuilt is None:
        return [f"`nox -s updates -- {name} --rebuild`"]
    if failed:
        return [f"read {wanted.out / (name + SUFFIX)}/report.md: the rebuild did not pass"]
    folder = wanted.out / f"{name}{SUFFIX}"
    publish = f"`nox -s publish -- {name} --image {name}{SUFFIX} --attestation {folder} --to REPOSITORY`"
    renew = "renew the base (`nox -s pin`), and rebuild once more" if rebuilt.left else ""
    return [publish, *([renew] if renew else [])]


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise UserError(problem_of(error, str(path)), code=1) from None
