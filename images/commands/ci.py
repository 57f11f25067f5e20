"""What workflows do besides building: issues for breakages, and a guard over files that a machine renewed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

import typer

from images.commands import common
from images.config import paths
from images.errors import Problem, UserError
from images.maintenance import github, guard, metadata, releases
from images.maintenance.github import Act, Report, Step

_SHOWN = 10


def issues_verb(
    reports: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where `nightly --report` wrote KEY.md files.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Ask and change nothing: list the reports.")] = False,
) -> None:
    """An issue on GitHub for each breakage: opened once, updated when its text changes, reopened when it comes back."""
    if not reports.is_dir():
        raise UserError(Problem(where=str(reports), cause="is no folder", then="`nox -s nightly -- --report FOLDER`"))
    found = [_report(path) for path in sorted(reports.glob("*.md"))]
    if dry_run:
        for report in found:
            typer.echo(f"{report.key}: {report.title}")
        return
    repository = github.Repository.of(os.environ)
    for step in github.steps(found, repository.issues()) if found else ():
        typer.echo(_told(step, repository.do(step)))
    if not found:
        typer.echo(f"{reports}: no breakage")


def _report(path: Path) -> Report:
    try:
        return Report.of(path.stem, path.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        raise UserError(Problem(where=str(path), cause=str(error), then="`nox -s nightly` writes them")) from None


def _told(step: Step, number: int) -> str:
    done = {Act.OPEN: "opened", Act.UPDATE: "updated", Act.REOPEN: "reopened", Act.NOTHING: "unchanged"}
    return f"#{number} {done[step.act]}: {step.report.title}"


def guard_verb(
    before: Annotated[str, typer.Option("--before", metavar="REVISION", help="The commit to compare with.")] = "HEAD",
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="PATTERN", help="A table or file that may lose rows.")
    ] = None,
    root: Annotated[Path, typer.Option("--root", metavar="FOLDER", help="The checkout.")] = paths.RESOURCES,
) -> None:
    """Refuse a refresh that loses rows: facts, GPU models, locks, bases, nightly results."""
    found = guard.compare(guard.at_revision(root, before), guard.in_checkout(root))
    lost: dict[str, list[str]] = {}
    for loss in found.losses:
        if not any(fnmatch(loss.table, pattern) for pattern in allow or ()):
            lost.setdefault(loss.table, []).append(loss.row.strip("/") or "all of it")
    if lost:
        then = "look at why; if it is meant, --allow 'PATTERN'"
        raise UserError(
            [Problem(where=table, cause=f"has lost {_listed(rows)}", then=then) for table, rows in lost.items()], code=1
        )
    typer.echo(f"{found.before} rows before, {found.after} now, none lost")
    typer.echo(f"{found.packages_before} locked packages before, {found.packages_after} now, no lock lost")


def _listed(rows: list[str]) -> str:
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return ", ".join(rows[:_SHOWN]) + more


def _readable(newer: Sequence[tuple[str, str]], python: str, source: str) -> Iterator[str]:
    for name, version in newer:
        try:
            yield metadata.as_row(metadata.read(f"{name}=={version}", python), source)
        except UserError as error:
            cause = error.problems[0].cause
            common.say(f"{name}=={version} gets no row, its metadata can't be read: {cause.splitlines()[0][:160]}")


def releases_verb(
    write: Annotated[bool, typer.Option("--write", help="Add their rows to images/data/facts.yaml.")] = False,
    python: Annotated[str, typer.Option("--python", help="The Python to look for.")] = "3.11",
) -> None:
    """Releases that the index has and images/data/facts.yaml has no row of.

    One whose metadata can't be read (source that asks for torch before it tells what it needs) is named and left out.
    """
    if write:
        paths.require_checkout("releases --write")
    sources = common.sources()
    compiled = {row.distribution or name for name, row in sources.matrix.sources.items()}
    newer = releases.unknown(sources.facts, releases.newest(sources.facts, python, compiled))
    for name, version in newer:
        typer.echo(f"{name}=={version}")
    if newer and write:
        source = f"Requires-Dist of its METADATA, read {datetime.now(UTC).date()} (`python -m images releases`)"
        rows = list(_readable(newer, python, source))
        path = "images/data/facts.yaml"
        content = releases.inserted((paths.RESOURCES / path).read_text(encoding="utf-8"), rows)
        common.write({path: content.encode()}, paths.RESOURCES, check=False, remedy="")
