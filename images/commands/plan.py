"""The verb `plan`: show every image of the matrix, accepted or refused, and why.

It imports as little as possible, because CI and the tests start it most.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from images.commands import common
from images.commands.options import Json, MatrixFile, Selectors
from images.config.matrix import Sources
from images.config.selectors import parse
from images.errors import command, wrong
from images.locking import lock_file
from images.locking.lock_file import Status as LockStatus
from images.planning import custom_base
from images.planning import plan as planning
from images.planning.candidate import Topic
from images.planning.image import Image
from images.planning.plan import Planned
from validate import terminal
from validate.judging import listed, plural
from validate.terminal import aligned

_HEADER = ("image", "status", "torch", "CUDA", "driver", "GPUs (sm_)")
_OTHER_COLUMNS = 53
"""Characters of a row beside the image's name, if it has seven architectures."""
_LEAST_NAME_WIDTH = 25
"""Characters of the names' column in a narrow terminal."""
_MOST_NAMES = 4
"""Names of images in a note on several. The table has them all."""
_KEPT = "nightly runs leave its torch as it is until a day: nothing needs to be done"


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
    """Show every image, accepted or refused, and why.

    Exits with 2 if an image that was asked for is refused.
    """
    if as_json and names:
        raise wrong("--names", "this is one form, and --json another", "give one of the two")
    sources = common.sources(matrix)
    chosen = list(selectors or [])
    # Conditions such as `torch>=2.8` choose among the tracked images. A name or glob, a selector
    # without a key, takes the place of the tracked images.
    if tracked and all(parse(selector).key for selector in chosen):
        chosen = [*sources.matrix.nightly.track, *chosen]
    try:
        planned = planning.select(chosen, sources)
    except planning.NoImageError:
        # A CI matrix may be empty.
        if not names:
            raise
        planned = ()
    images = [image.image for image in planned if image.image]
    states = lock_file.states(images, sources.workspace.locks)

    if as_json:
        rows = ",\n ".join(json.dumps(as_json_entry(image, states)) for image in planned)
        typer.echo(f'{{"images": [\n {rows}\n]}}')
    elif names:
        buildable = []
        for image in planned:
            if states.get(image.name) == LockStatus.PRESENT:
                buildable.append(image.name)
        typer.echo(json.dumps(buildable))
    else:
        # Before the table, which comes last.
        common.show(describe_statuses(images if chosen else [], sources))
        common.show(table(planned, states, terminal.width_of(sys.stdout)))
    # As `build` ends for the same images.
    if common.find_refused(planned, chosen, sources):
        raise typer.Exit(2)


def describe_statuses(images: Sequence[Image], sources: Sources) -> Iterator[str]:
    """Yield a line for each image that was asked for: what its recorded runs prove of it."""
    if not images:
        return
    # Imported here: CI asks for JSON or whole matrices, and need not wait for these modules.
    from images.site.recorded import RecordedRuns

    recorded = RecordedRuns.read(sources)
    for image in images:
        status = recorded.status(image)
        step = ""
        if any(run.newer for run in status.deciding):
            step = f" `{command('validate', str(image.name))}` measures all claims."
        yield f"{image.name}: {status.sentence}{step}"


def as_json_entry(planned: Planned, locks: Mapping[str, LockStatus]) -> dict[str, Any]:
    """Return the entry of an image in the JSON of `plan --json`.

    `planned` is the image with the answer of the plan: accepted, or refused with reasons. `locks`
    has the status of each image's lock, by the image's name.
    """
    blocked = _blocked_reason(planned, locks)
    return {
        "name": planned.name,
        "status": "accepted" if planned.image else "refused",
        "reasons": list(planned.reasons),
        "warnings": list(planned.warnings),
        "kept": planned.kept_reason,
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
    planned: Sequence[Planned], locks: Mapping[str, LockStatus], width: int | None = None
) -> Iterator[str]:
    """Yield what `plan` prints: notes, then a row for each image, and the number of images.

    The table comes last, as what is printed first scrolls away. `locks` has the status of each
    image's lock. Names for which a line of `width` characters has no room have a line of their own;
    None: no line is too long.
    """
    rows: list[tuple[str, ...]] = [_HEADER]
    states = Counter[str]()
    for image in planned:
        state = _state(image, locks)
        states[state] += 1
        rows.append(_table_row(image, state))

    if len(planned) == 1:
        notes = _notes_of_image(planned[0], locks)
    else:
        notes = [*_shared_notes(planned, locks)]
    yield from notes
    if notes:
        yield ""
    if width is None:
        yield from aligned(rows, " ")
    else:
        yield from aligned(rows, " ", max(width - _OTHER_COLUMNS, _LEAST_NAME_WIDTH))
    yield ""
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    yield f"{plural(len(planned), 'image')}: {counts}"


def _state(planned: Planned, locks: Mapping[str, LockStatus]) -> str:
    """Return the word for an image in the column `status`."""
    if not planned.image:
        return "refused"
    if not _blocked_reason(planned, locks):
        return "ok"
    lock_status = locks.get(planned.name, LockStatus.MISSING)
    return "no lock" if lock_status is LockStatus.MISSING else str(lock_status)


def _table_row(planned: Planned, state: str) -> tuple[str, ...]:
    """Return the row of an image in the table of `plan`, a text for each column.

    The columns are: name, state, torch, CUDA, oldest driver, GPU architectures.
    """
    archs = " ".join(str(arch).removeprefix("sm_") for arch in planned.archs)
    # Only the major version: `550` of 550.54.14.
    driver = planned.min_driver.partition(".")[0] if planned.min_driver else "-"
    return (
        planned.name,
        state,
        planned.torch or "-",
        str(planned.image_name.cuda),
        driver,
        archs or "-",
    )


def _notes_of_image(planned: Planned, locks: Mapping[str, LockStatus]) -> list[str]:
    """Return all that is to know of one image, in full: a line for each note."""
    notes = _obstacles(planned, _blocked_reason(planned, locks))
    # Until when nightly runs leave the image's pins alone, and why.
    if planned.kept_reason:
        notes.append(planned.kept_reason)
    for text in planned.warnings:
        notes.append(f"warning: {text}")
    return [f"{planned.name}: {note}" for note in notes]


def _shared_notes(planned: Sequence[Planned], locks: Mapping[str, LockStatus]) -> Iterator[str]:
    """Yield the lines about several images, each with the images that it is about, or their number.

    First come the reasons why images can't be built here, and what they need (obstacles). Then come
    the topics of the images' warnings, not the warnings: those of the whole matrix have 300 lines.
    """
    names_by_obstacle: dict[str, list[str]] = {}
    names_by_topic: dict[str, list[str]] = {topic: [] for topic in Topic}
    names_by_topic[_KEPT] = []
    for image in planned:
        blocked = _blocked_reason(image, locks)
        if image.image:
            # The reason has a command with the name of the lock. With NAME in its place, all images
            # without a lock share one note.
            blocked = blocked.replace(image.image.lock_name, "NAME")
        for obstacle in _obstacles(image, blocked):
            names_by_obstacle.setdefault(obstacle, []).append(image.name)

        # An image may have several warnings on one topic.
        for about in {finding.topic for finding in image.findings if finding.topic}:
            names_by_topic[about].append(image.name)
        if image.kept_reason:
            names_by_topic[_KEPT].append(image.name)

    for obstacle, names in names_by_obstacle.items():
        yield f"{_name_or_count(names)}: {obstacle}"
    topics_with_names = {topic: names for topic, names in names_by_topic.items() if names}
    if topics_with_names:
        yield f"warnings (`{command('plan', 'NAME')}` prints those of an image in full):"
    for topic, names in topics_with_names.items():
        # Of the worst, each image is named: whoever chooses one must not overlook it.
        shown = ", ".join(names) if topic is Topic.SILENT else _name_or_count(names)
        yield f"  {shown}: {topic}"


def _name_or_count(names: Sequence[str]) -> str:
    """Return the names of a few images, or how many there are: the table is what is to be read."""
    if len(names) > _MOST_NAMES:
        return plural(len(names), "image")
    return listed(names, limit=_MOST_NAMES)


def _obstacles(planned: Planned, blocked: str) -> list[str]:
    """Return why an image is refused or can't be built here, and what its custom base must have.

    `blocked` is the reason why it can't be built here; empty if there is none.
    """
    obstacles = []
    if planned.reasons:
        obstacles.append(f"refused: {'; '.join(planned.reasons)}")
    if blocked:
        obstacles.append(blocked)
    if planned.image and planned.image.base.custom:
        obstacles.append(custom_base.describe_needs(planned.image.base))
    return obstacles


def _blocked_reason(planned: Planned, locks: Mapping[str, LockStatus]) -> str:
    """Return why an accepted image can't be built here; empty if it can, and for a refused one."""
    if not planned.image:
        return ""
    return lock_file.why_blocked(planned.image, locks.get(planned.name, LockStatus.MISSING))
