"""Refuses a refresh of files by a machine that loses rows: a page that moved or an index that half answers looks so.

`python -m tools.guard [--before REVISION]`. Compared are facts and GPU models (every key and every item of a list),
locks (their files, and that none is empty), pinned bases, and the nightly results, which are only ever appended to.
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
from images.errors import Problem, UserError
from tools import run

_TABLES = ("images/data/facts.yaml", "images/data/gpu_models.yaml", "locks/bases.yaml")
_LOCKS = "locks/*/*.txt"
_LINES = "results/nightly/*.jsonl"
GUARDED = (*_TABLES, _LOCKS, _LINES)
_SHOWN = 10
Files = Mapping[str, bytes]
"""Path -> content."""


def lost(before: Files, after: Files) -> dict[str, list[str]]:
    """Table or file -> its rows that are gone. Raises UserError for one that is no YAML. Pure.

    A newer release may need fewer packages: a lock is lost where it named some and names none.
    """
    old, new = rows(before), rows(after)
    found = {
        table: [row for row in wanted if row not in new.get(table, {})]
        for table, wanted in old.items()
    }
    found |= {
        path: ["all of it"]
        for path, content in before.items()
        if fnmatch(path, _LOCKS) and _names(content) and not _names(after.get(path, b""))
    }
    return {table: gone for table, gone in found.items() if gone}


def rows(files: Files) -> dict[str, dict[str, None]]:
    """Table -> its rows, in order: keys and list items of a section, and lines of results."""
    found: dict[str, dict[str, None]] = {}
    for path, content in files.items():
        if path in _TABLES:
            for section, value in _parsed(path, content).items():
                found[f"{path} {section}"] = dict.fromkeys(["all of it", *_paths(value)])
        elif fnmatch(path, _LINES):
            lines = content.decode(errors="replace").splitlines()
            found[path] = dict.fromkeys(
                f"line {number}: {line}" for number, line in enumerate(lines, 1)
            )
    return found


def _parsed(path: str, content: bytes) -> dict[str, Any]:
    try:
        data = yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise UserError(
            Problem(where=path, cause=f"is no YAML: {error}", then="do not merge it"), code=1
        ) from None
    return data if isinstance(data, dict) else {}


def _paths(value: object, above: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{above}{key}"
            yield from _paths(inner, f"{above}{key}/")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield f"{above}{f'row {number + 1}' if isinstance(item, (dict, list)) else item}"
            yield from _paths(item, above) if isinstance(item, (dict, list)) else ()


def _names(content: bytes) -> list[str]:
    """The packages of a lock; the layers of some images have nothing to install."""
    lines = content.decode(errors="replace").splitlines()
    return [line for line in lines if line and not line.startswith(("#", " ", "-"))]


def at_revision(root: Path, revision: str) -> dict[str, bytes]:
    """The guarded files of a commit. Raises UserError for one that git does not know."""

    def git(*arguments: str) -> bytes:
        try:
            return subprocess.run(
                ["git", *arguments], cwd=root, capture_output=True, check=True
            ).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", b"").decode(errors="replace").strip() or str(error)
            then = "name a commit that this clone has (a shallow clone lacks older ones)"
            raise UserError(Problem(where=f"--before {revision}", cause=said, then=then)) from None

    listed = git("ls-tree", "-r", "--name-only", revision).decode().splitlines()
    guarded = [
        path
        for path in listed
        if any(
            fnmatch(path, pattern) and path.count("/") == pattern.count("/") for pattern in GUARDED
        )
    ]
    return {path: git("show", f"{revision}:{path}") for path in guarded}


def in_checkout(root: Path) -> dict[str, bytes]:
    """The guarded files as they lie there."""
    found = sorted({path for pattern in GUARDED for path in root.glob(pattern)})
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


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
    for table, gone in lost(old, new).items():
        if not any(fnmatch(table, pattern) for pattern in allow or ()):
            more = f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
            cause = f"has lost {', '.join(gone[:_SHOWN])}{more}"
            problems.append(
                Problem(
                    where=table, cause=cause, then="look at why; if it is meant, --allow 'PATTERN'"
                )
            )
    if problems:
        raise UserError(problems, code=1)
    counts = [sum(map(len, rows(files).values())) for files in (old, new)]
    typer.echo(f"{counts[0]} rows before, {counts[1]} now, none lost")


if __name__ == "__main__":
    run(main)
