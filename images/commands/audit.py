"""The audit of an image that nobody here built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from images.audit import conduct, report
from images.audit.cleaning import text
from images.audit.model import Severity
from images.audit.containers import Limits
from images.commands import common, trials
from images.commands.options import EngineUrl, grouped, require_writable
from images.config import matrix
from images.engine import gpus as gpu_access
from images.errors import Problem, UserError
from images.planning import plan

_EVIDENCE = "audit-evidence.json"


@dataclass(frozen=True, kw_only=True)
class AuditArguments:
    """What an audit does."""

    run: Annotated[bool, typer.Option("--run/--no-run", help="Also run the image's own Python, without a network.")] = (
        True
    )
    gpus: Annotated[
        str, typer.Option("--gpus", metavar=gpu_access.HELP, help="Also run its kernels on the host's GPUs.")
    ] = "none"
    timeout: Annotated[float, typer.Option("--timeout", min=10, help="Seconds for each container.")] = 1800
    fail_on: Annotated[
        str, typer.Option("--fail-on", metavar="error|warning|never", help="Which faults make the exit status 1.")
    ] = "error"


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Where the report goes, besides the terminal."""

    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="audit.json, .html, .sarif.")] = None
    annotations: Annotated[
        bool, typer.Option("--annotations", help="Print GitHub's workflow commands: faults annotate a pull request.")
    ] = False
    location: Annotated[
        str, typer.Option("--location", metavar="FILE", help="Where SARIF and annotations show the faults.")
    ] = "Dockerfile"


@grouped
def audit_verb(
    reference: Annotated[str, typer.Argument(metavar="REF", help="Any image that the engine has, or can pull.")],
    how: AuditArguments,
    report: ReportArguments,
    engine: EngineUrl = None,
) -> None:
    """Look for faults in any image: what is broken, where it runs, what it weighs. An audit is no validation."""
    severities = failing(how.fail_on)
    if report.out:
        require_writable(report.out)
    sources = common.sources_if_any()
    facts = sources.facts if sources else matrix.load_facts()
    images = [one.image for one in plan.plan(sources) if one.image] if sources else []
    if not sources:
        common.say("no matrix.yaml is here: the audit names no nearest image")
    with trials.open_engine(engine) as docker_engine:
        if docker_engine.find(reference) is None:
            common.say(f"pulling {reference}")
            docker_engine.pull(reference)
        # "0": whether its driver is new enough is the image's affair, and what an audit tells.
        attachment = gpu_access.attach(docker_engine, how.gpus, min_driver="0")
        options = conduct.AuditOptions(
            run=how.run,
            gpus=attachment,
            limits=Limits(container=how.timeout, run=how.timeout, probe=how.timeout / 2),
            say=lambda told: common.talk.print(text(told), style="dim", markup=False),
        )
        found = conduct.audit(docker_engine, reference, facts, images, options)
    console = common.results()
    for part in terminal.render(found.audit):
        console.print(part)
    if report.annotations:
        for line in sarif.commands(found.audit, report.location):
            typer.echo(line)
    if report.out:
        _write(found, report.out, report.location)
    raise typer.Exit(1 if severities and found.audit.faults(*severities) else 0)


def failing(word: str) -> tuple[Severity, ...]:
    """The severities that make the exit status 1. Raises UserError for a word that names none."""
    known = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}
    if word not in known:
        raise UserError(
            Problem(where=f"--fail-on {word}", cause="is none of error, warning, never", then="say one of them")
        )
    return known[word]


def _write(found: conduct.Audited, folder: Path, location: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "audit.json": data.dumps(found.audit),
        "audit.html": page.html(found.audit),
        "audit.sarif": sarif.dumps(found.audit, location),
        _EVIDENCE: data.evidence(found.evidence),
    }
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    common.talk.print(f"wrote {', '.join(files)} to {folder}")
