"""`plan`: every image, accepted or refused. It imports as little as it can: CI and the tests start it most."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from images.commands import common, tables
from images.commands.options import Json, MatrixFile, Selectors
from images.config.selectors import Glob, parse
from images.locking import lock_file
from images.locking.lock_file import Status as LockStatus
from images.planning import plan as planning
from images.planning.plan import Planned


def plan(
    selectors: Selectors = None,
    tracked: Annotated[
        bool,
        typer.Option("--tracked", help="Where no name is given, those that the nightly run builds: `nightly.track`."),
    ] = False,
    as_json: Json = False,
    names: Annotated[
        bool, typer.Option("--names", help="A JSON list, in one line, of those that can be built: for a CI matrix.")
    ] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="With --names: [] where no image matches all selectors.")
    ] = False,
    matrix: MatrixFile = None,
) -> None:
    """Every image, accepted or refused, and why.

    Without selectors, images that have no lock are named below the table: they can't be built here.
    """
    sources = common.sources(matrix)
    wanted = list(selectors or [])
    if tracked and not any(isinstance(parse(one), Glob) for one in wanted):
        wanted = [*sources.matrix.nightly.track, *wanted]
    try:
        planned = planning.select(wanted, sources)
    except planning.NoImageError:
        if not (names and allow_empty):
            raise
        planned = ()
    states = lock_file.states((image.image for image in planned if image.image), sources.workspace.locks)
    if as_json:
        rows = ",\n ".join(json.dumps(as_row(image, states)) for image in planned)
        typer.echo(f'{{"images": [\n {rows}\n]}}')
    elif names:
        typer.echo(json.dumps([one.name for one in planned if states.get(one.name) == LockStatus.PRESENT]))
    else:
        common.show(tables.plan(planned, states, unlocked=bool(wanted)))


def as_row(planned: Planned, locks: Mapping[str, LockStatus]) -> dict[str, Any]:
    """One image of `plan --json`."""
    blocked = tables.blocked(planned, locks)
    return {
        "name": planned.name,
        "status": "accepted" if planned.accepted else "refused",
        "reasons": list(planned.reasons),
        "warnings": list(planned.warnings),
        "torch": planned.torch,
        "python": str(planned.python) if planned.python else None,
        "toolkit_cuda": str(planned.image_name.cuda),
        "wheel_cuda": str(planned.wheel_cuda) if planned.wheel_cuda else None,
        "archs": [str(arch) for arch in planned.archs],
        "min_driver": planned.min_driver,
        "profile": planned.profile,
        "pins": dict(planned.pins or {}),
        "lock": locks.get(planned.name, LockStatus.MISSING),
        "buildable": planned.accepted and not blocked,
        "blocked": blocked,
    }
