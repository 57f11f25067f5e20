"""What all verbs share: the matrix, the images a person means, files to write, and how to talk. Quick to import."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from images.config import matrix, paths
from images.config.matrix import Sources
from images.config.names import ImageName
from images.config.paths import Workspace
from images.config.platforms import Platform
from images.errors import Problem, UserError, command
from images.host import cache as host_cache
from images.host import checkout
from images.planning import plan
from images.planning.image import Image
from images.planning.plan import Planned

talk = Console(stderr=True, highlight=False)


def results() -> Console:
    """Where tables of results go: as wide as the terminal, 150 columns into a file or a pipe."""
    return Console(width=None if sys.stdout.isatty() else 150, highlight=False)


def sources(matrix_file: Path | None = None) -> Sources:
    """Matrix, facts and workspace of `--matrix`; else those of the current folder, else the checkout's.

    Raises UserError with all that is wrong in them.
    """
    loaded = matrix.load(_workspace(matrix_file).matrix)
    plan.check(loaded)
    return loaded


def sources_if_any(matrix_file: Path | None = None) -> Sources | None:
    """The same for verbs that need none: an installed package comes without a matrix."""
    return sources(matrix_file) if _workspace(matrix_file).matrix.exists() else None


def _workspace(matrix_file: Path | None) -> Workspace:
    if matrix_file or paths.chosen() is None:
        paths.use(paths.find(matrix_file, Path.cwd()))
    return paths.workspace()


def accepted(selectors: list[str], sources: Sources, *, exactly_one: bool = False) -> list[Image]:
    """The accepted images that selectors mean. Raises UserError for refused ones, with every reason."""
    planned = plan.select(selectors, sources)
    if exactly_one and len(planned) != 1:
        names = ", ".join(image.name for image in planned)
        raise UserError(
            Problem(where=" ".join(selectors), cause=f"means {len(planned)} images: {names}", then="name one")
        )
    if refused := [image for image in planned if not image.accepted]:
        if len(refused) == len(planned) or any(image.name in selectors for image in refused):
            raise UserError([_refusal(image) for image in refused])
        for image in refused:
            talk.print(f"[yellow]{image.name}[/] is refused and left out: {escape('; '.join(image.reasons))}")
    return [image.image for image in planned if image.image]


def _refusal(image: Planned) -> Problem:
    return Problem(
        where=image.name, cause=f"is refused: {'; '.join(image.reasons)}", then=f"`{command('plan')}` shows all images"
    )


def aliases_of(name: str, sources: Sources) -> list[str]:
    return [alias for alias, meant in sources.matrix.aliases.items() if meant == name]


def row_of(name: str, sources: Sources) -> tuple[str, ...]:
    """The images of a name's row in the matrix, linux/amd64 first; a name that the matrix has no row for, alone."""
    row = sources.matrix.row(ImageName.parse(name))
    names = sorted(row.names(), key=lambda one: one.platform is not Platform.AMD64) if row else ()
    return tuple(map(str, names)) or (name,)


def commit(root: Path = paths.CHECKOUT.root) -> str:
    """The commit of the folder with the matrix; empty where files differ from it, or there is no git."""
    if checkout.git(root, "status", "--porcelain") != "":
        return ""
    return checkout.git(root, "rev-parse", "HEAD") or ""


def write(files: dict[str, bytes], root: Path, *, check: bool, remedy: str) -> None:
    """Write files below `root`, or (`check`) say which are not current and fail."""
    stale = [path for path, content in files.items() if not _same(root / path, content)]
    if check:
        if stale:
            raise UserError([Problem(where=path, cause="is not current", then=f"`{remedy}`") for path in stale], code=1)
        typer.echo(f"{len(files)} files are current")
        return
    for path in stale:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(files[path])
        typer.echo(f"wrote {path}")
    if not stale:
        typer.echo(f"{len(files)} files were current")


def _same(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def counted(count: int, noun: str) -> str:
    """`1 image`, `2 images`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def say(text: str) -> None:
    talk.print(text, style="yellow")


def cache() -> Path:
    """Where downloads are kept: outside the project, so that clones share them."""
    return host_cache.folder()
