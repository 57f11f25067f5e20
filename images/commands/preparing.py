"""Before a build: what there is, what it resolves to, what it renders to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from images.building import contexts, records
from images.commands import common, trials
from images.commands.options import (
    BaseImage,
    Check,
    EngineUrl,
    Out,
    Selectors,
)
from images.config import paths
from images.context import base_images
from images.context.hosting import host_settings
from images.errors import Problem, UserError
from images.locking import lock_file, resolve
from images.locking.uv import IndexUnreachable
from images.maintenance import generate, metadata
from images.planning import plan
from images.planning.image import Image
from images.wheels import cache as wheel_cache


def lock_verb(
    selectors: Selectors = None,
    check: Check = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Take the newest of what no pin holds.")] = False,
) -> None:
    """Resolve images into hash-pinned locks under locks/; without selectors, every accepted image."""
    sources = common.sources()
    images = common.accepted(selectors or [], sources)
    others = [image.image for image in plan.plan(sources) if image.image]
    files, silent = _locked(images, others, upgrade=upgrade, named=bool(selectors))
    stale = lock_file.differing(files)
    if check and stale:
        then = f"`nox -s lock{' -- ' + ' '.join(selectors) if selectors else ''}`"
        raise UserError([Problem(where=f"locks/{path}", cause="is not current", then=then) for path in stale], code=1)
    if not check:
        lock_file.write(files)
    done = len(images) - sum(map(len, silent.values()))
    typer.echo(f"{done} locks, {len(stale)} files {'changed' if stale else 'changed: all were current'}")
    if silent:
        raise UserError([_unreachable(host, names) for host, names in silent.items()], code=1)


def _locked(
    images: Sequence[Image], others: Sequence[Image], *, upgrade: bool, named: bool
) -> tuple[dict[str, bytes], dict[str, list[str]]]:
    """The locks' files, and host -> images that were not locked since their index does not answer.

    An image that was asked for by name is no matter of luck: then the index must answer.
    """
    files: dict[str, bytes] = {}
    silent: dict[str, list[str]] = {}
    for index in dict.fromkeys(image.index for image in sorted(images, key=lambda one: one.index is not None)):
        own, host = [image for image in images if image.index == index], urlsplit(index or "").hostname or ""
        if host in silent:
            silent[host] += [str(image.name) for image in own]
            continue
        try:
            files |= resolve.update(
                own, others, upgrade=upgrade, tell=lambda text: common.talk.print(text, style="dim")
            )
        except IndexUnreachable:
            if named:
                raise
            silent[host] = [str(image.name) for image in own]
    return files, silent


def _unreachable(host: str, names: Sequence[str]) -> Problem:
    cause = f"the package index does not answer: {len(names)} images were not locked ({', '.join(names)})"
    return Problem(where=host, cause=cause, then="`nox -s lock` where it answers; their present locks stay as they are")


def render_verb(
    selectors: Annotated[list[str], typer.Argument(metavar="SELECTOR...")],
    out: Out = Path("out"),
    base: BaseImage = "auto",
) -> None:
    """Write the build context of images; `docker build` with BuildKit accepts it."""
    sources = common.sources()
    options = contexts.ContextOptions(
        facts=sources.facts,
        host=host_settings(),
        cache=common.cache(),
        compiled=wheel_cache.wheel_finder(sources.matrix, wheel_cache.default()),
        fetch=_fetch_nothing,
    )
    pinned = trials.pinned_bases()
    for image in common.accepted(selectors, sources):
        folder = out / str(image.name) / "context"
        base_context = contexts.base_context(image.base, base, pinned)
        prepared = contexts.prepare(image, lock_file.read(image), base_context, options)
        records.write_context(prepared.files, folder)
        common.talk.print(f"next: DOCKER_BUILDKIT=1 docker build -t {image.name} {folder}", soft_wrap=True)


def _fetch_nothing(_url: str, _target: Path) -> None:
    raise OSError("`render` fetches no wheel")


def pin_verb(engine: EngineUrl = None) -> None:
    """Record the digests of the base images in locks/bases.yaml. Needs a registry."""
    sources = common.sources()
    with trials.open_engine(engine) as docker_engine:
        pins = base_images.pin(docker_engine, plan.bases(sources))
        common.write(pins, paths.workspace().root, check=False, remedy="")


def facts_verb(
    requirement: Annotated[str, typer.Argument(metavar="NAME==VERSION", help="A release on the package index.")],
    python: Annotated[str, typer.Option("--python", help="The Python to read it for.")] = "3.11",
) -> None:
    """What a release requires, as a row for images/data/facts.yaml."""
    source = f"Requires-Dist of its METADATA, read {date.today()} (`python -m images facts`)"
    typer.echo(metadata.as_row(metadata.read(requirement, python), source), nl=False)


def generate_verb(check: Check = False) -> None:
    """Renew the files that are made from others: schemas, tables in the docs."""
    paths.require_checkout("generate")
    common.write(generate.files(common.sources()), paths.RESOURCES, check=check, remedy="nox -s generate")
