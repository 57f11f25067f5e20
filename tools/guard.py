"""Refuse a refresh of files by a machine that loses rows.

That happens if a page has moved, or an index answers only in part. `python -m tools.guard [--before
REVISION]` compares the checkout with a commit: facts and GPU models (every key, and every item of a
list), locks (their files, and that none becomes empty), pinned bases, and the nightly results, to
which lines are only ever added.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from images.config.paths import RESOURCES
from images.errors import Problem, UserError, failed, wrong
from tools import run

_TABLES = ("images/data/facts.yaml", "images/data/gpu_models.yaml", "locks/bases.yaml")
_LOCKS = "locks/*/*.txt"
_LINES = "results/nightly/*.jsonl"
GUARDED = (*_TABLES, _LOCKS, _LINES)
_SHOWN = 10
_WHOLE = "all of it"
"""Stands for a table or a lock as a row of its own: lost if nothing of it is left."""
Files = Mapping[str, bytes]
"""Path -> content."""


def lost(before: Files, after: Files) -> dict[str, list[str]]:
    """Return the rows that are gone: table or file -> its lost rows. Pure.

    A lock is lost if it named packages and names none. It may name fewer: a newer release may need
    fewer. Raises UserError for a table that is no YAML.
    """
    rows_after = rows(after)
    losses: dict[str, list[str]] = {}
    for table, old_rows in rows(before).items():
        new_rows = rows_after.get(table, {})
        losses[table] = [row for row in old_rows if row not in new_rows]
    for path, content in before.items():
        if fnmatch(path, _LOCKS) and _packages(content) and not _packages(after.get(path, b"")):
            losses[path] = [_WHOLE]
    return {table: lost_rows for table, lost_rows in losses.items() if lost_rows}


def rows(files: Files) -> dict[str, dict[str, None]]:
    """Return the rows of each table, in their order (the dicts have no values).

    A table is a section of a YAML file, as `images/data/facts.yaml torch`; its rows are keys and
    list items, as `2.7.1/variants/12.6/archs/7.5`. A file of results is a table of its lines.
    """
    rows_by_table: dict[str, dict[str, None]] = {}
    for path, content in files.items():
        if path in _TABLES:
            for section, value in _parse(path, content).items():
                rows_by_table[f"{path} {section}"] = dict.fromkeys([_WHOLE, *_paths(value)])
        elif fnmatch(path, _LINES):
            lines = content.decode(errors="replace").splitlines()
            numbered = [f"line {number}: {line}" for number, line in enumerate(lines, 1)]
            rows_by_table[path] = dict.fromkeys(numbered)
    return rows_by_table


def _parse(path: str, content: bytes) -> dict[str, Any]:
    """Return a YAML file; empty if it is no mapping. Raises UserError if it is no YAML."""
    try:
        data = yaml.safe_load(content)
    except yaml.YAMLError as error:
        cause = f"this file is no YAML: {error}"
        raise failed(path, cause, "correct the file; do not merge the change as it is") from None
    return data if isinstance(data, dict) else {}


def _paths(value: object, above: str = "") -> Iterator[str]:
    """Yield the path of each key and list item below a value: `2.7.1/variants/12.6`.

    Items that are rows of their own are numbered. Their keys stand without the number, so that a
    new row in front of them changes no path.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{above}{key}"
            yield from _paths(inner, f"{above}{key}/")
    elif isinstance(value, list):
        for number, item in enumerate(value, start=1):
            if isinstance(item, dict | list):
                yield f"{above}row {number}"
                yield from _paths(item, above)
            else:
                yield f"{above}{item}"


def _packages(lock: bytes) -> list[str]:
    """Return the lines of a lock that name packages. Layers of some images have none."""
    lines = lock.decode(errors="replace").splitlines()
    return [line for line in lines if line and not line.startswith(("#", " ", "-"))]


def at_revision(root: Path, revision: str) -> dict[str, bytes]:
    """Return the guarded files of a commit. Raises UserError if git does not know it."""
    listing = _git(root, revision, "ls-tree", "-r", "--name-only", revision)
    files = {}
    for path in listing.decode().splitlines():
        if _is_guarded(path):
            files[path] = _git(root, revision, "show", f"{revision}:{path}")
    return files


def _git(root: Path, revision: str, *arguments: str) -> bytes:
    """Return what git prints. Raises UserError, which names the revision, if it fails."""
    command = ["git", *arguments]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", b"").decode(errors="replace").strip()
        then = "name a commit that this clone has (a shallow clone lacks older ones)"
        raise wrong(f"--before {revision}", output or str(error), then) from None


def _is_guarded(path: str) -> bool:
    """Return whether a path matches a guarded pattern, whose `*` stands for no slash."""
    for pattern in GUARDED:
        if fnmatch(path, pattern) and path.count("/") == pattern.count("/"):
            return True
    return False


def in_checkout(root: Path) -> dict[str, bytes]:
    """Return the guarded files of a checkout."""
    files: set[Path] = set()
    for pattern in GUARDED:
        files.update(root.glob(pattern))
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(files)}


def main(
    before: Annotated[
        str, typer.Option(metavar="REVISION", help="The commit to compare with.")
    ] = "HEAD",
    allow: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="What may lose rows (repeat it).")
    ] = None,
    root: Annotated[Path, typer.Option(metavar="FOLDER", help="The checkout.")] = RESOURCES,
) -> None:
    """Refuse a refresh that loses rows: facts, GPU models, locks, bases, nightly results."""
    old, new = at_revision(root, before), in_checkout(root)
    problems = []
    for table, lost_rows in lost(old, new).items():
        if any(fnmatch(table, pattern) for pattern in allow or ()):
            continue
        more = f" and {len(lost_rows) - _SHOWN} more" if len(lost_rows) > _SHOWN else ""
        cause = f"this table has lost {', '.join(lost_rows[:_SHOWN])}{more}"
        then = f"bring the rows back; if they are to go, give --allow '{table}'"
        problems.append(Problem(where=table, cause=cause, then=then))
    if problems:
        raise UserError(problems, code=1)
    typer.echo(f"{_count_rows(old)} rows before, {_count_rows(new)} now, none lost")


def _count_rows(files: Files) -> int:
    """Return how many rows all tables together have."""
    return sum(len(table) for table in rows(files).values())


if __name__ == "__main__":
    run(main)
