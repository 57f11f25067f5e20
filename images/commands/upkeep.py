"""Verbs that are about to become programs of tools/."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import typer

from images.commands import common, engines
from images.commands.options import Check, EngineUrl
from images.config import paths
from images.context import base_images
from images.maintenance import generate, metadata
from images.planning import plan


def pin_verb(engine: EngineUrl = None) -> None:
    """Record the digests of the base images in locks/bases.yaml. Needs a registry."""
    sources = common.sources()
    with engines.open_engine(engine) as docker_engine:
        pins = base_images.pin(docker_engine, plan.bases(sources))
        common.write(pins, sources.workspace.root, check=False, remedy="")


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
