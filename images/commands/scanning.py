"""Verbs of known vulnerabilities: `scan`, `vex`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from images.commands import common, inventories
from images.commands.inventories import ImageArguments
from images.commands.options import EngineUrl, OneName, grouped
from images.config import paths
from images.errors import Problem, UserError, problem_of
from images.publish import index
from images.registry.client import Registry
from images.registry.distribution import File
from images.registry.reference import Reference
from images.vulnerabilities import debian, findings, inventory, matching, record, vex
from images.vulnerabilities.findings import Findings
from images.vulnerabilities.inventory import Inventory
from images.vulnerabilities.matching import Match
from images.vulnerabilities.record import ScanRecord, Standing
from images.vulnerabilities.vex import State, Statement

_COLOURS = {Standing.OVERDUE: "bold red", Standing.OPEN: "yellow"}


@dataclass(frozen=True, kw_only=True)
class ScanArguments(ImageArguments):
    """What is scanned, and who says what is vulnerable."""

    findings: Annotated[
        list[Path] | None,
        typer.Option("--findings", metavar="FILE", help="JSON of Grype, Trivy or OSV-scanner; repeat it."),
    ] = None
    debian: Annotated[bool, typer.Option("--debian", help="Ask Debian's security archive, by this machine's apt.")] = (
        False
    )
    attach: Annotated[
        str, typer.Option("--attach", metavar="REF", help="Attach our statements to this published image.")
    ] = ""


@grouped
def scan_verb(name: OneName, wanted: ScanArguments, engine: EngineUrl = None) -> None:
    """Known vulnerabilities of an image: what is open, since when, against the limits. Without findings: UNPROVEN."""
    (image,) = common.accepted([name], common.sources(), exactly_one=True)
    found = inventories.find(str(image.name), wanted, engine)
    place = paths.workspace().results / "vulnerabilities" / f"{image.name}.json"
    before = _before(place)
    told = [(str(path), _read(path)) for path in wanted.findings or ()]
    if wanted.debian:
        told.append(("--debian", debian.scan(found.of(inventory.DEB), common.say)))
    matches = [one for where, said in told for one in _matched(found, where, said)]
    sources = {kind: [said.scanner for _, said in told if kind in said.covers] for kind in inventory.KINDS}
    made = record.make(
        found,
        matches,
        _statements(),
        sources,
        today=datetime.now(UTC).date(),
        before=before,
    )
    if told:
        _write(place, record.dumps(made))
    if wanted.attach:
        _attach(wanted.attach, found)
    _print(made)
    raise typer.Exit(1 if made.unproven or made.of(Standing.OVERDUE) else 0)


def _before(file: Path) -> ScanRecord | None:
    """The record until now. Raises UserError for one that can't be read: it holds since when everything is open."""
    try:
        return record.loads(file.read_bytes()) if file.is_file() else None
    except (OSError, ValueError) as error:
        then = f"`git restore {file}`; or remove it, and what is open counts from today"
        cause = f"can't be read: {str(error).splitlines()[0]}"
        raise UserError(Problem(where=str(file), cause=cause, then=then)) from None


def _read(path: Path) -> Findings:
    try:
        return findings.read(path.read_bytes())
    except OSError as error:
        raise UserError(problem_of(error, f"--findings {path}")) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        then = "write it anew: `grype -o json`, `trivy image --format json` or `osv-scanner --format json`"
        cause = f"can't be read: {type(error).__name__}: {error}"
        raise UserError(Problem(where=f"--findings {path}", cause=cause, then=then)) from None


def _matched(found: Inventory, where: str, said: Findings) -> Sequence[Match]:
    """Raises UserError for a file that says nothing of this image."""
    matched = matching.match(found, said)
    is_file = where != "--debian"
    if is_file and (cause := matching.refusal(found, said, matched)):
        raise UserError(Problem(where=where, cause=cause, then=f"scan {found.digest[:19]} and give that file"), code=1)
    if matched.strangers:
        names = sorted({f"{one.package} {one.version}" for one in matched.strangers})
        common.say(f"{where}: {len(names)} packages are not in the SBOM in that version: {', '.join(names[:5])}")
    return matched.matches


def _statements() -> tuple[Statement, ...]:
    file = paths.workspace().root / vex.FILE
    try:
        return vex.loads(file.read_bytes()) if file.is_file() else ()
    except (OSError, ValueError, LookupError, TypeError) as error:
        then = "repair it, or write its statements anew with `nox -s vex`"
        raise UserError(Problem(where=str(file), cause=f"can't be read: {error}", then=then)) from None


def _attach(reference: str, found: Inventory) -> None:
    """Raises UserError where there is nothing to attach, or the reference is of another image."""
    file = paths.workspace().root / vex.FILE
    if not file.is_file():
        then = "`nox -s vex -- ID --package PURL --state STATE --because TEXT` writes one"
        raise UserError(Problem(where=f"--attach {reference}", cause="there are no statements", then=then))
    wanted = Reference.parse(reference)
    with Registry(wanted.repository) as registry:
        images = index.load(registry, registry.get(wanted.identifier))
        image = next((one for one in images if one.image_id == found.digest), images[0])
        if image.image_id != found.digest:
            cause = f"is {image.image_id[:19]}, the scanned image is {found.digest[:19]}"
            then = "scan the image that is published: --image REF"
            raise UserError(Problem(where=f"--attach {reference}", cause=cause, then=then), code=1)
        content = File(name=vex.FILE.name, media_type=vex.MEDIA_TYPE, content=file.read_bytes())
        registry.attach(image.manifest.descriptor, vex.MEDIA_TYPE, [content])
    common.say(f"attached {vex.FILE.name} to {image.reference}")


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise UserError(problem_of(error, str(path)), code=1) from None


def _print(made: ScanRecord) -> None:
    if made.rows:
        table = Table(title=f"{made.image} {made.digest[:19]}", title_justify="left")
        for heading in ("id", "package", "severity", "open since", "due", "", "fixed in", "told by"):
            table.add_column(heading, overflow="fold")
        for row in made.rows:
            colour = _COLOURS.get(row.standing, "green")
            cells = (row.id, row.purl.removeprefix("pkg:"), row.severity, row.since, row.due or "-")
            standing = f"[{colour}]{row.standing}[/]{escape(': ' + row.because) if row.because else ''}"
            more = (standing, " ".join(row.fixed) or "-", row.source)
            table.add_row(*(escape(str(cell)) for cell in cells), standing, *(escape(cell) for cell in more[1:]))
        common.results().print(table)
    for purl, version, ids in record.rebuilds(made):
        typer.echo(f"a rebuild can take {purl} to {version}: {', '.join(ids)}")
    for kind, who in made.sources.items():
        count = sum(record.kind(row) == kind for row in made.of(Standing.OPEN, Standing.OVERDUE))
        told = f"{count} open, told by {', '.join(who)}" if who else "UNPROVEN: nobody looked, so nothing is known"
        typer.echo(f"{made.image}  {kind}  {told}")


def vex_verb(
    vulnerability: Annotated[str, typer.Argument(metavar="ID", help="CVE-2026-1234, say.")],
    package: Annotated[str, typer.Option("--package", metavar="PURL", help="pkg:pypi/NAME@VERSION, say.")],
    state: Annotated[State, typer.Option("--state", help="What we say of it.")],
    because: Annotated[str, typer.Option("--because", metavar="TEXT", help="The reason, as people read it.")],
    justification: Annotated[
        str, typer.Option("--justification", metavar="WORD", help="CycloneDX's word for it; for not-affected.")
    ] = "",
) -> None:
    """Say of a vulnerability that an image is not affected, that it is fixed, or that it will not be fixed."""
    _require_sound(package, state, because, justification)
    now = datetime.now(UTC)
    said = Statement(
        id=vulnerability,
        purl=package,
        state=state,
        because=because.strip(),
        justification=justification,
        date=now.isoformat(timespec="seconds"),
    )
    others = [one for one in _statements() if (one.id, one.purl) != (said.id, said.purl)]
    file = paths.workspace().root / vex.FILE
    _write(file, vex.dumps([*others, said], now))
    typer.echo(f"{file}: {len(others) + 1} statements")


def _require_sound(package: str, state: State, because: str, justification: str) -> None:
    """Raises UserError."""
    problems = []
    if not vex.is_exact(package):
        then = "write it as `scan` does: pkg:deb/debian/NAME@VERSION or pkg:pypi/NAME@VERSION"
        problems.append(Problem(where=f"--package {package}", cause="names no version of a package", then=then))
    if not because.strip():
        problems.append(Problem(where="--because", cause="is empty", then="say why, for who reads it in a year"))
    if (state is State.NOT_AFFECTED) != (justification in vex.JUSTIFICATIONS):
        cause = "not-affected needs one of CycloneDX's words, and nothing else has one"
        then = f"give one of {', '.join(vex.JUSTIFICATIONS)}"
        problems.append(Problem(where=f"--justification {justification}", cause=cause, then=then))
    if problems:
        raise UserError(problems)
