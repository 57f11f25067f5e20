"""`plan`: every image, accepted or refused. It imports as little as it can: CI and the tests start it most."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from images.commands import common
from images.commands.common import counted
from images.commands.options import Json, MatrixFile, Selectors
from images.config.selectors import parse
from images.locking import lock_file
from images.locking.lock_file import Status as LockStatus
from images.planning import plan as planning
from images.planning.plan import Planned
from validate.terminal import aligned

_PLAN = ("image", "status", "torch", "CUDA", "driver", "GPUs (sm_)")
_NAME_WIDTH = 27
"""So that the row of the most architectures has 80 characters; longer names, which have fewer, stand out."""


def plan(
    selectors: Selectors = None,
    tracked: Annotated[
        bool,
        typer.Option(
            "--tracked",
            help="Where no name is given, those that the nightly run builds: `nightly.track`.",
        ),
    ] = False,
    as_json: Json = False,
    names: Annotated[
        bool,
        typer.Option(
            "--names", help="A JSON list, in one line, of those that can be built: for a CI matrix."
        ),
    ] = False,
    matrix: MatrixFile = None,
) -> None:
    """Every image, accepted or refused, and why.

    Without selectors, images that have no lock are named below the table: they can't be built here.
    """
    sources = common.sources(matrix)
    wanted = list(selectors or [])
    if tracked and all(parse(one).key for one in wanted):
        wanted = [*sources.matrix.nightly.track, *wanted]
    try:
        planned = planning.select(wanted, sources)
    except planning.NoImageError:
        if not names:
            raise
        planned = ()
    states = lock_file.states(
        (image.image for image in planned if image.image), sources.workspace.locks
    )
    if as_json:
        rows = ",\n ".join(json.dumps(as_row(image, states)) for image in planned)
        typer.echo(f'{{"images": [\n {rows}\n]}}')
    elif names:
        typer.echo(
            json.dumps([one.name for one in planned if states.get(one.name) == LockStatus.PRESENT])
        )
    else:
        common.show(table(planned, states, unlocked=bool(wanted)))


def as_row(planned: Planned, locks: Mapping[str, LockStatus]) -> dict[str, Any]:
    """One image of `plan --json`."""
    blocked = _why_blocked(planned, locks)
    return {
        "name": planned.name,
        "status": "accepted" if planned.image else "refused",
        "reasons": list(planned.reasons),
        "warnings": list(planned.warnings),
        "kept": planned.kept,
        "torch": planned.torch,
        "python": str(planned.python) if planned.python else None,
        "toolkit_cuda": str(planned.image_name.cuda),
        "wheel_cuda": str(planned.wheel_cuda) if planned.wheel_cuda else None,
        "archs": [str(arch) for arch in planned.archs],
        "min_driver": planned.min_driver,
        "profile": planned.profile,
        "pins": dict(planned.pins or {}),
        "lock": locks.get(planned.name, LockStatus.MISSING),
        "buildable": planned.image is not None and not blocked,
        "blocked": blocked,
    }


def table(
    planned: Sequence[Planned], locks: Mapping[str, LockStatus], *, unlocked: bool = True
) -> Iterator[str]:
    """One line an image, refused ones included; below them why, and what to mind, each with the names it is of.

    `unlocked`: those without a lock have lines of their own, too; else they are named below.
    """
    told: dict[str, list[str]] = {}
    rows, states = [_PLAN], Counter[str]()
    for image in planned:
        why, state = _why_blocked(image, locks), "ok"
        if image.image and len(planned) > 1:  # so that it is said once of all
            why = why.replace(image.image.lock_name, "NAME")
        if not image.image:
            state = "refused"
        elif why:
            state = "stale" if locks.get(image.name) is LockStatus.STALE else "no lock"
        states[state] += 1
        if state == "no lock" and not unlocked:
            told.setdefault(why, []).append(image.name)
            continue
        archs = " ".join(str(arch).removeprefix("sm_") for arch in image.archs)
        driver = image.min_driver.partition(".")[0] if image.min_driver else "-"
        rows.append(
            (
                image.name,
                state,
                image.torch or "-",
                str(image.image_name.cuda),
                driver,
                archs or "-",
            )
        )
        notes = [f"refused: {'; '.join(image.reasons)}"] if image.reasons else []
        for note in [
            *notes,
            *filter(None, [why, image.kept]),
            *(f"warning: {text}" for text in image.warnings),
        ]:
            told.setdefault(note, []).append(image.name)
    yield from aligned(rows, " ", _NAME_WIDTH)
    if told:
        yield ""
    for note, names in told.items():
        yield f"{', '.join(names)}: {note}"
    yield ""
    kinds = [f"{count} {state}" for state, count in states.items()]
    yield counted(len(planned), "image") + (f": {', '.join(kinds)}" if len(kinds) > 1 else "")


def _why_blocked(planned: Planned, locks: Mapping[str, LockStatus]) -> str:
    """Why an accepted image can't be built here; of a refused one, the reasons say it."""
    return (
        lock_file.why_blocked(planned.image, locks.get(planned.name, LockStatus.MISSING))
        if planned.image
        else ""
    )
