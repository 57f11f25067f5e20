"""`audit`: faults of an image that nobody here built."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from images.audit import conduct, packages, report
from images.audit.cleaning import text
from images.audit.model import Severity
from images.commands import common
from images.commands.options import EngineUrl, require_writable
from images.config import matrix as matrix_files
from images.engine import private_engine
from images.planning import chooser


class FailOn(StrEnum):
    """Which faults make the exit status 1."""

    ERROR = "error"
    WARNING = "warning"
    NEVER = "never"

    @property
    def severities(self) -> tuple[Severity, ...]:
        return {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}[self]


def audit(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REF|FILE|FOLDER|-",
            help="Any image; or packages: a lock, requirements, a Dockerfile, a venv, `pip freeze`.",
        ),
    ],
    gpu: Annotated[str, typer.Option("--gpu", metavar="MODEL", help="The GPU it shall run on: B200, say.")] = "",
    arch: Annotated[str, typer.Option("--arch", metavar="SM", help="Its architecture, where no table has it.")] = "",
    driver: Annotated[str, typer.Option("--driver", metavar="VERSION", help="That machine's driver.")] = "",
    python: Annotated[str, typer.Option("--python", metavar="X.Y", help="The Python that packages are for.")] = "",
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Also run the image's own Python, without a network.")
    ] = True,
    timeout: Annotated[float, typer.Option("--timeout", min=10, help="Seconds for each container.")] = 1800,
    fail_on: Annotated[FailOn, typer.Option("--fail-on", help="Which faults make the exit status 1.")] = FailOn.ERROR,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="audit.json, .html, .sarif.")] = None,
    location: Annotated[
        str,
        typer.Option("--location", metavar="FILE", help="Where SARIF shows the faults. Default: FILE, or Dockerfile."),
    ] = "",
    engine: EngineUrl = None,
) -> None:
    """Look for faults in any image, lock or environment. An audit is no validation.

    Packages of a file or folder are read without Docker, a GPU, or running any of them.
    """
    if out:
        require_writable(out)
    machine = chooser.described(gpu, arch, driver) if gpu or arch or driver else None
    facts = matrix_files.load_facts()

    def progress(told: str) -> None:
        common.talk.print(text(told), style="dim", markup=False)

    # Standard input, a file or folder, or named as locks are: not an image's name.
    if reference == packages.STDIN or Path(reference).exists() or reference.endswith((".txt", ".lock", ".toml")):
        version = chooser.python_minor(python) if python else ""
        found, evidence = packages.audit(reference, version, facts, machine, progress)
    else:
        with private_engine.open_engine(engine, on_progress=common.say) as docker_engine:
            if docker_engine.find(reference) is None:
                common.say(f"pulling {reference}")
                docker_engine.pull(reference)
            options = conduct.AuditOptions(run=run, machine=machine, timeout=timeout, progress=progress)
            found, evidence = conduct.audit(docker_engine, reference, facts, options)
    common.show(report.terminal(found), report.INDENT)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        files = {
            "audit.json": report.dumps(found),
            "audit.html": report.html(found),
            "audit.sarif": report.sarif(found, location or (reference if Path(reference).is_file() else "Dockerfile")),
            "audit-evidence.json": report.evidence(evidence),
        }
        for name, content in files.items():
            (out / name).write_text(content, encoding="utf-8")
        common.talk.print(f"wrote {', '.join(files)} to {out}")
    severities = fail_on.severities
    raise typer.Exit(1 if severities and found.faults(*severities) else 0)
