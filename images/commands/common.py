"""Functions that all verbs share: load the matrix, select images, and print. Quick to import."""

import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from images.config import matrix, paths
from images.config.matrix import Sources
from images.errors import Problem, UserError, command, wrong
from images.planning import plan
from images.planning.image import Image
from images.planning.plan import Planned
from validate import terminal

if TYPE_CHECKING:
    from images.building.other_images import RecordedPass
    from images.building.validating import Compare
    from images.engine import Engine

talk = Console(stderr=True, highlight=False, soft_wrap=True)
_COLOURS = {
    **dict.fromkeys(("PASS", "ok"), "green"),
    **dict.fromkeys(("FAIL", "refused", "error"), "bold red"),
    **dict.fromkeys(("KNOWN", "UNPROVEN", "no lock", "stale", "warning"), "yellow"),
    "NOT_APPLICABLE": "dim",
    "note": "cyan",
}
_STATE = re.compile(rf"^(?! )(?:.*?\s)?({'|'.join(_COLOURS)})(?=[:,\s]|$)")


def show(lines: Iterable[str], indent: str = "    ") -> None:
    """Print results on stdout. `indent` is put before the continuation lines of a wrapped one.

    Lines are wrapped at the terminal's width (or COLUMNS), and stay whole in a pipe. A verdict or a
    state, such as PASS, gets its colour, unless NO_COLOR is set.
    """
    console = Console(highlight=False)
    width = terminal.width_of(sys.stdout)
    for line in lines:
        text = Text(terminal.wrapped(line, width, indent))
        # Group 1 of the pattern is the verdict or state.
        if word := _STATE.search(text.plain):
            start, end = word.span(1)
            text.stylize(_COLOURS[word[1]], start, end)
        console.print(text, soft_wrap=True)


def sources(matrix_file: Path | None = None) -> Sources:
    """Load a matrix file, the facts, and the workspace around the matrix.

    Without a file, the matrix of the current folder is loaded or, if there is none, the checkout's,
    which a message says. Raises UserError with everything that is wrong in them.
    """
    here = Path.cwd()
    workspace = paths.find(matrix_file, here)
    loaded = matrix.load(workspace.matrix)
    # Inside the checkout, its matrix is what everybody expects.
    if workspace is paths.CHECKOUT and not here.is_relative_to(workspace.root):
        tell(
            f"no {paths.MATRIX_NAME} in this folder: this is truetag's own, {workspace.matrix}; "
            f"`{command('init', str(here))}` writes one of your own here"
        )
    return loaded


def select_accepted(
    selectors: list[str], sources: Sources, *, exactly_one: bool = False
) -> list[Image]:
    """Return the images that selectors (names, globs, conditions) mean, without refused ones.

    An image is refused if the rules of the plan do not allow its combination of versions. Raises
    UserError if a refused image was named or if all images are refused; other refused images are
    left out with a message. With `exactly_one`, raises UserError if the selectors mean several
    images.
    """
    planned = plan.select(selectors, sources)
    if exactly_one and len(planned) != 1:
        names = ", ".join(image.name for image in planned)
        cause = f"this means {len(planned)} images, and the command takes one: {names}"
        raise wrong(" ".join(selectors), cause, "name one of these images")

    asked_for = find_refused(planned, selectors, sources)
    if asked_for:
        another = f"choose another image: `{command('plan')}` lists them"
        problems = []
        for image in asked_for:
            cause = f"is refused: {'; '.join(image.reasons)}"
            then = another
            if "in matrix.yaml" in cause:
                then = f"change matrix.yaml as the reason says, or {another}"
            problems.append(Problem(where=image.name, cause=cause, then=then))
        raise UserError(problems)

    accepted = []
    for row in planned:
        # A refused row of the plan has no image.
        if row.image:
            accepted.append(row.image)
        else:
            say(f"{row.name} is refused and left out: {'; '.join(row.reasons)}")
    return accepted


def find_refused(
    planned: Sequence[Planned], selectors: Sequence[str], sources: Sources
) -> list[Planned]:
    """Return the refused images that were asked for: all that selectors mean are, or some by name.

    `planned` are the images that the selectors (names, aliases, globs, conditions) mean. A refused
    image that only a glob or a condition matches, beside accepted ones, was not asked for; nor was
    any without selectors.
    """
    if not selectors:
        return []
    refused = [image for image in planned if not image.image]
    if len(refused) == len(planned):
        return refused
    names = [sources.matrix.aliases.get(selector, selector) for selector in selectors]
    return [image for image in refused if image.name in names]


def compare_others(engine: "Engine", sources: Sources) -> "Compare":
    """Return the function that runs failed GPU claims in other images that are recorded as PASS."""

    def read_passes() -> "Sequence[RecordedPass]":
        # Imported here, because only a failure on a GPU needs the recorded runs.
        from images.site import recorded

        return recorded.read_passes(sources)

    # Imported here, because verbs without an engine start sooner so.
    from images.building.other_images import OtherImages

    return OtherImages(engine, sources, read_passes, tell).compare


def say(text: str, style: str = "yellow") -> None:
    """Print a message on stderr, wrapped at the terminal's width."""
    talk.print(terminal.wrapped(text, terminal.width_of(sys.stderr)), style=style, markup=False)


tell = partial(say, style="dim")
