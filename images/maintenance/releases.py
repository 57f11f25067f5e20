"""Newer releases of the packages that facts.yaml has rows for, and those rows: what of the facts a machine may renew.

What was measured in wheels (GPU archs, ABIs, libraries) is not among it: for that, somebody opens the wheel.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from packaging.version import Version

from images.config.facts import Facts
from images.errors import Problem, UserError
from images.locking import uv
from images.locking.uv import Runner, Target

_PLATFORM = "x86_64-manylinux_2_36"
"""Debian bookworm's, by uv's name of it."""
_SOURCE = "source"
"""`form` of a row whose release has no wheel."""


def newest(facts: Facts, python: str, compiled: Collection[str], run: Runner = uv.run) -> dict[str, str]:
    """Name -> newest release on the index, of each package with rows. Raises UserError as `uv.packages` does.

    `compiled` are distributions that the matrix has sources of: an index has no wheel of them.
    """
    sources = {name for name, rows in facts.packages.items() if any(row.form == _SOURCE for row in rows.values())}
    asked = Target(python=python, platform=_PLATFORM, from_source=tuple(sorted(sources.union(compiled))))
    where = "images/data/facts.yaml"
    found = uv.packages(sorted(facts.packages), asked, chosen={}, run=run, where=where, dependencies=False)
    return {package.name: package.version for package in found}


def unknown(facts: Facts, found: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Releases above every row of their package: name and version."""
    return tuple(
        (name, version)
        for name, version in sorted(found.items())
        if all(Version(version) > Version(known) for known in facts.packages[name])
    )


def inserted(text: str, rows: Sequence[str]) -> str:
    """facts.yaml with rows (as `metadata.as_row` writes them) under their packages, and all else untouched.

    Raises UserError for a package that has no rows there yet.
    """
    lines = text.splitlines(keepends=True)
    for row in rows:
        head, *content = row.splitlines(keepends=True)
        lines[_end(lines, head) : _end(lines, head)] = content
    return "".join(lines)


def _end(lines: Sequence[str], head: str) -> int:
    """Behind the last row of a package: where the next one, or the next section, begins."""
    section = lines.index("packages:\n")
    try:
        start = lines.index(head, section)
    except ValueError:
        cause = f"has no rows of {head.strip(' :')}"
        raise UserError(
            Problem(where="images/data/facts.yaml", cause=cause, then="write the first one by hand")
        ) from None
    following = (at for at, line in enumerate(lines[start + 1 :], start + 1) if re.match(r" {0,2}[^ \n]", line))
    return next(following, len(lines))
