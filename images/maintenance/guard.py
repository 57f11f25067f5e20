"""Whether a refresh of files by a machine loses rows: a page that moved or an index that half answers looks like that.

What is compared: facts and GPU models (every key and every item of a list), locks (their files, and that none is
empty), pinned bases, and the nightly results, which are only ever appended to. Pure but for `at_revision` and
`in_checkout`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from images.errors import Problem, UserError

_TABLES = ("images/data/facts.yaml", "images/data/gpu_models.yaml", "locks/bases.yaml")
_LOCKS = "locks/*/*.txt"
_LINES = "results/nightly/*.jsonl"
GUARDED = (*_TABLES, _LOCKS, _LINES)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A row that was there and is not any more. `table` is the file, with the section it stands in."""

    table: str
    row: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What became of the guarded files. Rows are keys and list items of tables, and lines of results.

    Packages are those of locks: a newer release may need fewer, so they are counted and not missed one by one.
    """

    before: int
    after: int
    packages_before: int
    packages_after: int
    losses: tuple[Loss, ...]


def compare(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Comparison:
    """Rows lost between two states of the guarded files (path -> content). Raises UserError for one that is no YAML."""
    old, new = _rows(before), _rows(after)
    lost = [Loss(table=table, row=row) for table, rows in old.items() for row in rows if row not in new.get(table, {})]
    lost += [Loss(table=path, row="all of it") for path in _locks(before) if not _names(after.get(path, b""))]
    return Comparison(
        before=sum(map(len, old.values())),
        after=sum(map(len, new.values())),
        packages_before=sum(len(_names(before[path])) for path in _locks(before)),
        packages_after=sum(len(_names(after[path])) for path in _locks(after)),
        losses=tuple(lost),
    )


def _rows(files: Mapping[str, bytes]) -> dict[str, dict[str, None]]:
    """Table -> its rows, in order."""
    found: dict[str, dict[str, None]] = {}
    for path, content in files.items():
        if path in _TABLES:
            for section, value in _parsed(path, content).items():
                found[f"{path} {section}"] = dict.fromkeys(["", *_paths(value)])
        elif fnmatch(path, _LINES):
            lines = content.decode(errors="replace").splitlines()
            found[path] = dict.fromkeys(f"line {number}: {line}" for number, line in enumerate(lines, 1))
    return found


def _parsed(path: str, content: bytes) -> dict[str, Any]:
    try:
        data = yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise UserError(Problem(where=path, cause=f"is no YAML: {error}", then="do not merge it"), code=1) from None
    return data if isinstance(data, dict) else {}


def _paths(value: object, above: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{above}/{key}"
            yield from _paths(inner, f"{above}/{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            if isinstance(item, (dict, list)):
                yield f"{above}/row {number + 1}"
                yield from _paths(item, above)
            else:
                yield f"{above}/{item}"


def _locks(files: Mapping[str, bytes]) -> list[str]:
    """Locks that name something: the layers of some images have nothing to install."""
    return [path for path, content in files.items() if fnmatch(path, _LOCKS) and _names(content)]


def _names(content: bytes) -> list[str]:
    lines = content.decode(errors="replace").splitlines()
    return [line for line in lines if line and not line.startswith(("#", " ", "-"))]


def at_revision(root: Path, revision: str) -> dict[str, bytes]:
    """The guarded files of a commit. Raises UserError for one that git does not know."""
    listed = _git(root, revision, "ls-tree", "-r", "--name-only", revision).decode().splitlines()
    return {path: _git(root, revision, "show", f"{revision}:{path}") for path in listed if _is_guarded(path)}


def in_checkout(root: Path) -> dict[str, bytes]:
    """The guarded files as they lie there."""
    found = sorted({path for pattern in GUARDED for path in root.glob(pattern)})
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def _is_guarded(path: str) -> bool:
    return any(fnmatch(path, pattern) and path.count("/") == pattern.count("/") for pattern in GUARDED)


def _git(root: Path, revision: str, *arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"").decode(errors="replace").strip() or str(error)
        then = "name a commit that this clone has (a shallow clone lacks older ones)"
        raise UserError(Problem(where=f"--before {revision}", cause=said, then=then)) from None
