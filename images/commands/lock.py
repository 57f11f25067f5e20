"""`lock`: images resolved into hash-pinned locks, RECORDs of the locked wheels, and the Debian packages below."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from images.commands import common
from images.commands.options import Check, MatrixFile, Selectors
from images.config.matrix import Sources
from images.context import base_images, pruner
from images.errors import Problem, UserError, command
from images.locking import debian, lock_file, measure_records, resolve, wheel_records
from images.planning import plan
from images.planning.image import Image
from images.wheels import pruned_records


def lock(
    selectors: Selectors = None,
    check: Check = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Take the newest of what no pin holds, and of Debian.")
    ] = False,
    matrix: MatrixFile = None,
) -> None:
    """Resolve images into hash-pinned locks under locks/.

    Without selectors, every accepted image. Beside the locks, locks/records.json gets a digest of each wheel's RECORD,
    read from the index by range requests (claim `records`), and locks/debian/ the Debian packages that all images on
    one base share."""
    sources = common.sources(matrix)
    folder = sources.workspace.locks
    images = common.accepted(selectors or [], sources)
    everything = [planned.image for planned in plan.plan(sources) if planned.image]
    made, unreachable = resolve.update(
        images, everything, folder=folder, upgrade=upgrade, tell=common.tell
    )
    if selectors and unreachable:  # what was asked for by name is no matter of luck
        raise UserError([problem for found in unreachable.values() for problem in found], code=1)
    again = f"`{command('lock', *(selectors or ()))}`"
    stale = lock_file.differing(made, folder)
    if check and stale:
        raise UserError(
            [Problem(where=f"locks/{one}", cause="is not current", then=again) for one in stale],
            code=1,
        )
    if not check:
        lock_file.write(made, folder)
    renewed = {path.partition("/")[0] for path in made}
    # An image for one architecture need not stand in the matrix: who names it has its pruned files read, too.
    known = {image.name: image for image in (*everything, *images)}
    locked = [image for image in known.values() if image.lock_name in renewed]
    read = _check_records(locked, folder, again) if check else _write_records(locked, folder)
    if not selectors and not check:
        kept = [
            lock_file.read(one, folder) for one in everything if lock_file.is_present(one, folder)
        ]
        lock_file.put(measure_records.without_leftovers(kept, folder), folder)
    changed = f"{common.counted(len(stale), 'file')} changed" if stale else "all were current"
    typer.echo(f"{common.counted(len(renewed), 'lock')}: {changed}; {read}")
    for text in debian_packages(images, sources, upgrade=upgrade, check=check):
        typer.echo(text)
    if unreachable:
        silent: dict[str, list[str]] = {}
        for index, problems in unreachable.items():
            silent.setdefault(urlsplit(index).hostname or index, []).extend(
                problem.where for problem in problems
            )
        then = f"`{command('lock')}` where it answers; their present locks stay as they are"
        said = "the package index does not answer: {} images were not locked ({})"
        causes = {host: said.format(len(names), ", ".join(names)) for host, names in silent.items()}
        raise UserError(
            [Problem(where=host, cause=cause, then=then) for host, cause in causes.items()], code=1
        )


def debian_packages(
    images: Sequence[Image], sources: Sources, *, upgrade: bool, check: bool
) -> Iterator[str]:
    """Lock the Debian packages of bases whose lock is missing, or older than the list of packages; all to upgrade.

    What moved, and which base stays without a lock, as it was. Raises UserError: with `check` a base without a current
    lock, else a mirror that does not answer for a lock that has to be renewed.
    """
    folder = sources.workspace.locks
    for place, base in base_images.made_of_packages(images, sources.workspace.root).items():
        try:
            old = debian.require(base, folder) if check else debian.find(base, folder)
        except UserError:
            if check:
                raise
            old = None
        if check or (old and not upgrade):
            continue
        try:
            new = debian.resolve(base, datetime.now(UTC))
        except UserError as error:
            if upgrade or (folder / place).exists():
                raise
            yield f"locks/{place} is not made: {error.problems[0]}"
            continue
        moved = debian.changed_packages(old, new) if old else []
        if not old or replace(new, day=old.day) != old:  # the day alone is no news
            lock_file.put({place: debian.serialize(new)}, folder)
        of = f"Debian packages of {base.suite} ({base.platform.architecture})"
        if not old:
            yield f"locked {of}"
        elif moved:
            yield f"{of} that moved, {len(moved)} of {len(new.versions)}: {', '.join(moved)}"
        else:
            yield f"none of {len(new.versions)} {of} moved"


def _write_records(images: Sequence[Image], folder: Path) -> str:
    """Read the RECORDs of wheels in these images' locks, as far as they are not known."""
    locks = {image.lock_name: lock_file.read(image, folder) for image in images}
    before = wheel_records.read(folder)
    lock_file.put(measure_records.update(locks, folder, tell=common.tell), folder)
    for image in images:
        if image.pruning:
            lock = lock_file.read(image, folder)
            lock_file.put(
                pruned_records.update(image, lock, folder, on_progress=common.tell), folder
            )
    after = wheel_records.read(folder)
    changed = [name for name, rows in after.items() if before.get(name) != rows]
    return (
        f"read the RECORDs of {common.counted(len(changed), 'package')}"
        if changed
        else "all RECORDs were known"
    )


def _check_records(images: Sequence[Image], folder: Path, then: str) -> str:
    """Raises UserError for packages whose RECORDs nobody has read."""
    releases = set()
    for image in images:
        lock = lock_file.read(image, folder)
        releases |= {
            wheel_records.release(wheel.package) for wheel in measure_records.lacking(lock)
        }
        releases |= {
            wheel_records.release(package) for package, _ in pruner.unmeasured(image.pruning, lock)
        }
    if releases:
        where = f"locks/{wheel_records.FILE}"
        causes = [f"does not have the RECORD of {release}" for release in sorted(releases)]
        raise UserError([Problem(where=where, cause=cause, then=then) for cause in causes], code=1)
    return "all RECORDs are known"
