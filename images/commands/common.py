"""What all verbs share: the matrix, the images a person means, files to write, and how to talk. Quick to import."""

import re
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from images.config import matrix, paths
from images.config.matrix import Sources
from images.errors import Problem, UserError, command, wrong
from images.planning import plan
from images.planning.image import Image
from validate import terminal

talk = Console(stderr=True, highlight=False, soft_wrap=True)
_COLOURS = {
    **dict.fromkeys(("PASS", "ok", "fresh"), "green"),
    **dict.fromkeys(("FAIL", "refused", "error"), "bold red"),
    **dict.fromkeys(("KNOWN", "UNPROVEN", "no lock", "stale", "warning", "due"), "yellow"),
    **dict.fromkeys(("NOT_APPLICABLE", "impossible"), "dim"),
    **dict.fromkeys(("note", "leased"), "cyan"),
}
_STATE = re.compile(rf"^(?! )(?:.*?\s)?({'|'.join(_COLOURS)})(?=[:,\s]|$)")


def show(lines: Iterable[str], indent: str = "    ") -> None:
    """Print results, a paragraph a line: wrapped at the terminal's width (COLUMNS counts), whole in a pipe.

    A verdict or a state has its colour, where it stands alone; NO_COLOR is heard.
    """
    console, width = Console(highlight=False), terminal.width_of(sys.stdout)
    for line in lines:
        text = Text(terminal.wrapped(line, width, indent))
        if word := _STATE.search(text.plain):
            text.stylize(_COLOURS[word[1]], *word.span(1))
        console.print(text, soft_wrap=True)


def sources(matrix_file: Path | None = None) -> Sources:
    """Matrix, facts and workspace of `--matrix`; else those of the current folder, else the checkout's.

    Raises UserError with all that is wrong in them.
    """
    return matrix.load(paths.find(matrix_file, Path.cwd()).matrix)


def accepted(selectors: list[str], sources: Sources, *, exactly_one: bool = False) -> list[Image]:
    """The accepted images that selectors mean. Raises UserError for refused ones, with every reason."""
    planned = plan.select(selectors, sources)
    if exactly_one and len(planned) != 1:
        names = ", ".join(image.name for image in planned)
        raise wrong(" ".join(selectors), f"means {len(planned)} images: {names}", "name one")
    if refused := [image for image in planned if not image.image]:
        if len(refused) == len(planned) or any(image.name in selectors for image in refused):
            then = f"`{command('plan')}` shows all images"
            causes = {image.name: f"is refused: {'; '.join(image.reasons)}" for image in refused}
            raise UserError(
                [Problem(where=name, cause=cause, then=then) for name, cause in causes.items()]
            )
        for image in refused:
            say(f"{image.name} is refused and left out: {'; '.join(image.reasons)}")
    return [image.image for image in planned if image.image]


def counted(count: int, noun: str) -> str:
    """`1 image`, `2 images`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def say(text: str, style: str = "yellow") -> None:
    talk.print(terminal.wrapped(text, terminal.width_of(sys.stderr)), style=style, markup=False)


tell = partial(say, style="dim")
