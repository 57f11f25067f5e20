"""`plan`: every image, accepted or refused. It imports as little as it can: CI and the tests start it most."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from images.commands import common, tables
from images.commands.options import Selectors
from images.locking import lock_file
from images.planning import plan


def plan_verb(
    selectors: Selectors = None,
    tracked: Annotated[
        bool, typer.Option("--tracked", help="Images that the nightly run builds: `nightly.track` of matrix.yaml.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, on stdout and nothing else.")] = False,
    names: Annotated[
        bool, typer.Option("--names", help="A JSON list, in one line, of those that can be built: for a CI matrix.")
    ] = False,
) -> None:
    """Every image, accepted or refused, and why."""
    sources = common.sources()
    planned = plan.select(selectors or (sources.matrix.nightly.track if tracked else []), sources)
    states = lock_file.states(image.image for image in planned if image.image)
    if as_json:
        typer.echo(tables.plan_as_json(planned, states))
        return
    if names:
        locked = [image.name for image in planned if states.get(image.name) == lock_file.Status.PRESENT]
        typer.echo(json.dumps(locked))
        return
    common.results().print(tables.plan(planned, states))
