"""A validation run as a line of results/runs.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from images.config import paths
from images.site import records
from images.validation import schemas
from validate.judge import judge


def record_verb(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="out/NAME, as `build` or `validate` wrote it.")],
    where: Annotated[str, typer.Option("--as", metavar="WHERE", help="The machine, or the fault: `h100`, say.")],
    keep: Annotated[bool, typer.Option("--keep-evidence", help="Keep its evidence, for tests that replay it.")] = False,
    experiment: Annotated[
        bool, typer.Option("--experiment", help="Broken on purpose, or not of this matrix: not for the site.")
    ] = False,
    results: Annotated[
        Path | None, typer.Option("--results", metavar="FOLDER", help="Has runs.jsonl; default: results.")
    ] = None,
) -> None:
    """Append a validation run to results/runs.jsonl."""
    file = folder / "evidence.json"
    evidence = schemas.read_evidence(file)
    verdict = judge(evidence.claim_set, evidence)
    line = records.line_of(
        evidence, verdict, where, size=_size(folder, evidence.digest), kept=keep, experiment=experiment
    )
    target = results or paths.workspace().results
    records.append(target, line, file.read_bytes())
    typer.echo(f"{target / records.LINES}: {line.id}, {verdict.overall}")


def _size(folder: Path, digest: str) -> int:
    """What build.json says of this image; 0 where there is none."""
    file = folder / "build.json"
    built = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return int(built["bytes"]) if built.get("digest") == digest else 0
