"""`plan`: every image, accepted or refused. It imports as little as it can: CI and the tests start it most."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from images.commands import common, plan_tables
from images.commands.options import Selectors
from images.config.selectors import Glob, parse
from images.locking import lock_file
from images.planning import plan


def plan_verb(
    selectors: Selectors = None,
    tracked: Annotated[
        bool,
        typer.Option("--tracked", help="Where no name is given, those that the nightly run builds: `nightly.track`."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, on stdout and nothing else.")] = False,
    names: Annotated[
        bool, typer.Option("--names", help="A JSON list, in one line, of those that can be built: for a CI matrix.")
    ] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="With --names: [] where no image matches all selectors.")
    ] = False,
) -> None:
    """Every image, accepted or refused, and why."""
    sources = common.sources()
    wanted = list(selectors or [])
    if tracked and not any(isinstance(parse(one), Glob) for one in wanted):
        wanted = [*sources.matrix.nightly.track, *wanted]
    try:
        planned = plan.select(wanted, sources)
    except plan.NoImageError:
        if not (names and allow_empty):
            raise
        planned = ()
    states = lock_file.states(image.image for image in planned if image.image)
    if as_json:
        typer.echo(plan_tables.plan_as_json(planned, states))
        return
    if names:
        locked = [image.name for image in planned if states.get(image.name) == lock_file.Status.PRESENT]
        typer.echo(json.dumps(locked))
        return
    common.results().print(plan_tables.plan(planned, states))
