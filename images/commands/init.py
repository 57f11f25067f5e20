"""The verb `init`: write a first matrix.yaml to build from."""

from pathlib import Path
from typing import Annotated

import typer

from images.commands import common
from images.commands.options import require_writable
from images.config import paths
from images.errors import command, wrong

_TEMPLATE = paths.TEMPLATES / paths.MATRIX_NAME


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where it goes; default: the current folder.")
    ] = Path(),
) -> None:
    """Write a matrix.yaml of two images, with comments, into a folder.

    A matrix.yaml that is there already stays as it is.
    """
    elsewhere = command("init", "FOLDER")
    require_writable(folder, another=f"(`{elsewhere}`)")
    matrix = folder / paths.MATRIX_NAME
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # `x`: a file that is there, also one that was made just now, is never overwritten.
        with matrix.open("x", encoding="utf-8") as file:
            file.write(_TEMPLATE.read_text(encoding="utf-8"))
    except FileExistsError:
        then = f"`{_command_on(matrix)}` checks it; `{elsewhere}` writes another one"
        raise wrong(str(matrix), "is there already, and was not changed", then) from None

    images = " and ".join(row.name for row in common.sources(matrix).matrix.images)
    common.tell(f"wrote {matrix} with {images}: edit it, or take it as it is")
    common.tell(f"next: `{_command_on(matrix)}` shows its images, and what comes then")


def _command_on(matrix: Path) -> str:
    """Return the command that plans a matrix, as it is given in the current folder."""
    if matrix.parent.resolve() == Path.cwd():
        return command("plan")
    return command("plan", "--matrix", str(matrix))
