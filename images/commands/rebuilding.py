"""What a nightly run uses to take Debian's security updates: the packages of images, the archive, the rebuild."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from images.building import pipeline
from images.commands import inventories, updating
from images.commands.inventories import ImageArguments
from images.engine import Engine
from images.engine.progress import Progress
from images.errors import UserError
from images.nightly import judge
from images.nightly.security import Security
from images.nightly.state import Trial
from images.planning.image import Image
from images.registry.client import Registry
from images.registry.reference import Reference, Repository
from images.validation import schemas
from images.vulnerabilities.inventory import Inventory
from images.vulnerabilities.updates import PackageChange, Rebuilt

_SUFFIX = "-rebuild"
"""Of a rebuild's name, which is taken away again. `updates --rebuild` leaves NAME-updated, which is a person's."""


@dataclass(frozen=True, kw_only=True)
class RebuildArguments:
    """Which images are compared with Debian's security archive."""

    updates: Annotated[
        bool, typer.Option("--updates/--no-updates", help="Rebuild images that miss Debian's security updates.")
    ] = True
    only_updates: Annotated[
        bool, typer.Option("--only-updates", help="Look for security updates alone: no control, no canary.")
    ] = False
    published: Annotated[
        str,
        typer.Option("--published", metavar="REPOSITORY", help="Compare those published there; default: the engine's."),
    ] = ""


def security(engine: Engine, options: pipeline.BuildOptions, wanted: RebuildArguments, progress: Progress) -> Security:
    """What `images.nightly.security.run` is given. The rebuild is removed once its packages were read."""
    repository = Repository.parse(wanted.published) if wanted.published else None
    own = replace(options, no_cache=True, suffix=_SUFFIX)

    def rebuild(image: Image, before: Inventory, found: Sequence[PackageChange]) -> tuple[Trial, Rebuilt | None]:
        start = time.monotonic()
        name = f"{image.name}{_SUFFIX}"
        try:
            built, rebuilt = updating.rebuild(engine, image, own, (before, found), progress)
        except UserError as error:
            return _timed(Trial(claims=(), cause=judge.cause_of(error)), start), None
        finally:
            for tag in (name, f"{name}-candidate"):
                engine.untag(tag)
        evidence = schemas.read_evidence(own.out / name / "evidence.json")
        return _timed(judge.trial_of(built.info.id, built.info.size, evidence, built.verdict), start), rebuilt

    return Security(
        inventory=lambda image: _inventory(engine, repository, str(image.name)),
        pending=updating.pending,
        rebuild=rebuild,
    )


def _timed(trial: Trial, start: float) -> Trial:
    return trial.model_copy(update={"seconds": round(time.monotonic() - start, 1)})


def _inventory(engine: Engine, repository: Repository | None, name: str) -> Inventory | None:
    """The packages of a published image, or of the engine's. Raises UserError."""
    if repository is None:
        return inventories.of_engine(engine, name, name) if engine.find(name) else None
    with Registry(repository) as registry:
        if registry.find(name) is None:
            return None
    return inventories.find(name, ImageArguments(published=str(Reference(repository, name))), None)
