"""The packages of an image that verbs ask about: from an engine, a file, or a registry."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from images.commands import trials
from images.engine import Engine
from images.errors import Problem, UserError, problem_of
from images.publish import attachments, sbom
from images.registry.client import Registry
from images.registry.reference import Reference
from images.vulnerabilities import inventory
from images.vulnerabilities.inventory import Inventory

_THEN = "`oras pull` fetches the one that is attached to a published image"


@dataclass(frozen=True, kw_only=True)
class ImageArguments:
    """Which image, and where its packages are listed."""

    image: Annotated[str, typer.Option("--image", metavar="REF", help="The image; default: NAME itself.")] = ""
    sbom: Annotated[Path | None, typer.Option("--sbom", metavar="FILE", help="Its SBOM, where it is not here.")] = None
    published: Annotated[
        str, typer.Option("--published", metavar="REF", help="A published image, by the SBOM that is attached to it.")
    ] = ""


def find(name: str, wanted: ImageArguments, engine: str | None) -> Inventory:
    """The packages of NAME, or of what is named instead. Raises UserError, also where several are named."""
    if sum(map(bool, (wanted.image, wanted.sbom, wanted.published))) > 1:
        cause = "each names an image"
        raise UserError(Problem(where="--image, --sbom and --published", cause=cause, then="give one of them"))
    if wanted.sbom:
        return _of_file(wanted.sbom)
    if wanted.published:
        return _of_published(Reference.parse(wanted.published))
    with trials.open_engine(engine, install=False) as docker_engine:
        return of_engine(docker_engine, wanted.image or name, name)


def of_engine(engine: Engine, reference: str, name: str) -> Inventory:
    """The packages of an image in an engine, read in a container. Raises UserError."""
    info = engine.inspect(reference)
    packages = sbom.read(engine, info.id)
    created = datetime.fromisoformat(info.created)
    return inventory.read(sbom.cyclonedx(packages, name=name, digest=info.id, created=created))


def _of_file(path: Path) -> Inventory:
    try:
        return _read(path.read_bytes(), str(path))
    except OSError as error:
        raise UserError(problem_of(error, str(path))) from None


def _of_published(reference: Reference) -> Inventory:
    with Registry(reference.repository) as registry:
        image = attachments.load(registry, registry.get(reference.identifier))
    found = [content for one in image.of(attachments.SBOM) for content in one.files.values()]
    if not found:
        then = "publish it anew, or give its SBOM with --sbom"
        raise UserError(Problem(where=image.reference, cause="has no SBOM attached", then=then), code=1)
    return _read(found[0], image.reference)


def _read(content: bytes, where: str) -> Inventory:
    try:
        return inventory.read(content)
    except (ValueError, LookupError, TypeError) as error:
        cause = f"is no SBOM of ours: {error}"
        raise UserError(Problem(where=where, cause=cause, then=_THEN)) from None
