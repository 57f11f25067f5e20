"""The verb `lock`: pin every package of images by its hash: Python wheels and Debian packages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from images.commands import common
from images.commands.options import Check, MatrixFile, Selectors
from images.config import paths
from images.config.matrix import Sources
from images.context import base_images
from images.errors import Problem, UserError, command, failed
from images.host import checkout
from images.locking import debian, lock_file, measure_records, resolve, wheel_records
from images.planning import plan
from images.planning.image import Base, Image
from validate.judging import plural


def lock(
    selectors: Selectors = None,
    check: Check = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Take the newest of what no pin holds, and of Debian.")
    ] = False,
    matrix: MatrixFile = None,
) -> None:
    """Resolve images into hash-pinned locks under locks/.

    Without selectors, every accepted image. Beside the locks, locks/records.json gets a digest of
    each wheel's RECORD, read from the index by range requests (claim `records`), and locks/debian/
    the Debian packages that all images on one base share.
    """
    sources = common.sources(matrix)
    folder = sources.workspace.locks
    images = common.select_accepted(selectors or [], sources)
    all_images = [planned.image for planned in plan.plan(sources) if planned.image]
    # `files` has the new content of lock files, `unreachable` the indexes that did not answer.
    files, unreachable = resolve.update(
        images, all_images, folder=folder, upgrade=upgrade, tell=common.tell
    )
    # Without selectors, an index that does not answer stops only the locks that need it.
    if selectors and unreachable:
        raise UserError([*chain.from_iterable(unreachable.values())], code=1)

    again = f"`{command('lock', *(selectors or ()))}`"
    changed = lock_file.differing(files, folder)
    if check:
        _require_unchanged(changed, again)
    else:
        lock_file.write(files, folder)

    lock_names = {path.partition("/")[0] for path in files}
    # An image that is named need not be in the matrix: `all_images` may lack it.
    by_name = {image.name: image for image in (*all_images, *images)}
    locked = [image for image in by_name.values() if image.lock_name in lock_names]
    if check:
        records = _check_records(locked, folder, again)
    else:
        records = _write_records(locked, folder)
        if not selectors:
            _remove_unused_records(all_images, folder)

    summary = f"{plural(len(changed), 'file')} changed" if changed else "all were current"
    typer.echo(f"{plural(len(lock_names), 'lock')}: {summary}; {records}")
    for text in lock_debian_packages(images, sources, upgrade=upgrade, check=check):
        typer.echo(text)
    if not check and images:
        name = str(images[0].name) if len(images) == 1 else "NAME"
        common.tell(f"next: `{command('build', name)}`")
    if unreachable:
        raise _unreachable_error(unreachable)


def _require_unchanged(changed: Sequence[str], again: str) -> None:
    """Raise UserError if locking would change files, which `changed` names.

    `again` is the command that locks, for the next step.
    """
    if changed:
        cause = (
            "locking today writes another file than this: matrix.yaml, the index or truetag changed"
        )
        then = f"{again}, without --check, writes it; then `git diff` shows what changed"
        problems = [Problem(where=f"locks/{path}", cause=cause, then=then) for path in changed]
        raise UserError(problems, code=1)


def _unreachable_error(unreachable: Mapping[str, Sequence[Problem]]) -> UserError:
    """Return the error for package indexes that did not answer, with a problem for each host.

    `unreachable` maps the URL of an index to problems, one for each image that it kept from being
    locked. `where` of a problem is the image's name.
    """
    images_by_host: dict[str, list[str]] = {}
    for index, failures in unreachable.items():
        host = urlsplit(index).hostname or index
        for failure in failures:
            images_by_host.setdefault(host, []).append(failure.where)

    then = (
        f"give `{command('lock')}` again on a machine that reaches this index; until then, builds "
        "take the locks that these images have"
    )
    problems = []
    for host, names in images_by_host.items():
        were_not_locked = f"{plural(len(names), 'image was', 'images were')} not locked"
        cause = f"this package index does not answer, so {were_not_locked}: {', '.join(names)}"
        problems.append(Problem(where=host, cause=cause, then=then))
    return UserError(problems, code=1)


def lock_debian_packages(
    images: Sequence[Image], sources: Sources, *, upgrade: bool, check: bool
) -> Iterator[str]:
    """Lock the Debian packages of the images' base images, and yield a sentence about each.

    A lock is made if it is missing or older than the list of packages; with `upgrade`, always. With
    `check`, nothing is written, and a lock that is not current raises UserError.

    If a mirror does not answer, raises UserError for a lock that must be renewed, or that somebody
    deleted for a new one. A lock that was never made is then only reported, as images can be built
    without it; with `upgrade`, it raises UserError, too.
    """
    folder = sources.workspace.locks
    # `path` is the lock's file in the folder of locks.
    for path, base in base_images.made_of_packages(images, sources.workspace.root).items():
        if check:
            debian.require(base, folder)
            continue
        old = _find_debian_lock(base, folder)
        if old and not upgrade:
            continue
        try:
            new = debian.resolve(base, datetime.now(UTC))
        except UserError as error:
            # Without a lock, images can still be built on the base that a registry has.
            was_missing = not (folder / path).exists()
            if upgrade or not was_missing:
                raise
            if checkout.git(folder, "ls-tree", "--name-only", "HEAD", "--", path):
                raise _deleted_lock_error(folder / path, error.problems[0]) from None
            yield f"locks/{path} is not made: {error.problems[0]}"
            continue

        # A new day alone is no reason to change a file that git tracks.
        if not old or replace(new, day=old.day) != old:
            debian_lock = {path: debian.serialize(new)}
            lock_file.put(debian_lock, folder)
        yield _describe_debian_lock(base, old, new)


def _deleted_lock_error(file: Path, problem: Problem) -> UserError:
    """Return the error that a lock of Debian packages is gone from a checkout, without a new one.

    `problem` says why no new one could be made.
    """
    shown = paths.shown(file)
    cause = f"this file was deleted, and no new one could be made: {problem.cause}"
    then = f"{problem.then}; or bring the old one back: `git checkout HEAD -- {shown}`"
    return failed(shown, cause, then)


def _describe_debian_lock(base: Base, old: debian.DebianLock | None, new: debian.DebianLock) -> str:
    """Return a sentence on which Debian packages have other versions in a new lock than before.

    `Debian packages of bookworm (amd64) that moved, 1 of 40: curl`, for example. `old`
    is the lock before it; None: there was none, or none that could be read.
    """
    packages = f"Debian packages of {base.suite} ({base.platform.architecture})"
    if old is None:
        return f"locked {packages}"
    moved = debian.changed_packages(old, new)
    if moved:
        return f"{packages} that moved, {len(moved)} of {len(new.versions)}: {', '.join(moved)}"
    return f"none of {len(new.versions)} {packages} moved"


def _find_debian_lock(base: Base, folder: Path) -> debian.DebianLock | None:
    """Return the lock of a base image's Debian packages; None without one that can be read."""
    try:
        return debian.find(base, folder)
    except UserError:
        return None


def _write_records(images: Sequence[Image], folder: Path) -> str:
    """Record the digest of each locked wheel's RECORD, for wheels that have none yet.

    A RECORD is a wheel's list of its files with their hashes. The digests go to a table in
    `folder`, the folder of locks. Returns a sentence about what was read.
    """
    locks = {image.lock_name: lock_file.read(image, folder) for image in images}
    before = wheel_records.read(folder)
    lock_file.put(measure_records.update(locks, folder, tell=common.tell), folder)
    after = wheel_records.read(folder)

    # The table: `NAME VERSION` of a package -> the digests of its wheels.
    changed = [name for name, digests in after.items() if before.get(name) != digests]
    if not changed:
        return "all RECORDs were known"
    return f"read the RECORDs of {plural(len(changed), 'package')}"


def _remove_unused_records(images: Sequence[Image], folder: Path) -> None:
    """Remove the RECORD digests of wheels that are in no image's lock any more."""
    locks = []
    for image in images:
        if lock_file.is_present(image, folder):
            locks.append(lock_file.read(image, folder))
    lock_file.put(measure_records.without_leftovers(locks, folder), folder)


def _check_records(images: Sequence[Image], folder: Path, then: str) -> str:
    """Raise UserError for packages whose RECORDs nobody has read; else return a sentence.

    A RECORD is a wheel's list of its files with their hashes. The table of them lies in `folder`,
    the folder of locks. `then` is the next command in the error message.
    """
    releases = set()
    for image in images:
        lock = lock_file.read(image, folder)
        for wheel in measure_records.lacking(lock):
            releases.add(wheel_records.release(wheel.package))

    problems = []
    for release in sorted(releases):
        cause = f"this table lacks the RECORD of {release} (its wheel's list of files)"
        problems.append(Problem(where=f"locks/{wheel_records.FILE}", cause=cause, then=then))
    if problems:
        raise UserError(problems, code=1)
    return "all RECORDs are known"
