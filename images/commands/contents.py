"""The verb `contents`: what the files of locks bring, beside the locks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from images.commands import common
from images.commands.options import Selectors
from images.config import paths
from images.config.matrix import Sources
from images.locking import lock_file, measure_contents
from images.maintenance import bytecode
from images.planning import plan
from images.planning.image import Image
from images.validation import schemas
from images.wheels import pruned_contents


def contents_verb(
    selectors: Selectors = None,
    evidence: Annotated[
        list[Path] | None,
        typer.Option("--evidence", metavar="FILE", help="Keep what this evidence.json shows of bytecode (repeat it)."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 if something is lacking.")] = False,
) -> None:
    """Read what the files of locks bring, from the index, for claim S10; without selectors, of every lock."""
    sources = common.sources()
    folder = paths.workspace().locks
    if evidence:
        for file in evidence:
            _put(_learned(file, sources, folder), check=check)
        return
    images = [image for image in common.accepted(selectors or [], sources) if _is_locked(image)]
    locks = {image.lock_name: lock_file.read(image) for image in images}
    _put(measure_contents.update(locks, folder, tell=_tell), check=check)
    for image in images:
        if image.pruning:
            _put(pruned_contents.update(image, locks[image.lock_name], folder, tell=_tell), check=check)
    if not selectors and not check:
        everything = [planned.image for planned in plan.plan(sources) if planned.image]
        kept = [lock_file.read(image) for image in everything if _is_locked(image)]
        for path in measure_contents.leftovers(kept, folder):
            path.unlink()
            typer.echo(f"removed {paths.shown(path)}")


def _learned(file: Path, sources: Sources, folder: Path) -> dict[str, bytes]:
    recorded = schemas.read_evidence(file)
    (image,) = common.accepted([recorded.image], sources, exactly_one=True)
    return bytecode.learned(recorded, lock_file.read(image), folder, paths.shown(file))


def _put(files: dict[str, bytes], *, check: bool) -> None:
    """Write files below the folder of locks."""
    place = paths.workspace()
    named = {f"{place.locks.relative_to(place.root)}/{path}": content for path, content in files.items()}
    common.write(named, place.root, check=check, remedy="nox -s contents")


def _is_locked(image: Image) -> bool:
    return lock_file.state(image).status is lock_file.Status.PRESENT


def _tell(text: str) -> None:
    common.talk.print(text, style="dim")
