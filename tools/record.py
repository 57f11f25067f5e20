"""Appends a validation run to results/runs.jsonl: `python -m tools.record FOLDER... --as WHERE`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from images.config import paths
from images.site import records
from images.validation import schemas
from images.validation.joining import joined
from tools import run
from validate.judge import judge


def main(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...", help="out/NAME, as `build` or `validate` wrote it; parts of one run, each."
        ),
    ],
    where: Annotated[str, typer.Option("--as", metavar="WHERE", help="The machine, or the fault: `h100`, say.")],
    keep: Annotated[bool, typer.Option("--keep-evidence", help="Keep its evidence, for tests that replay it.")] = False,
    experiment: Annotated[
        bool, typer.Option("--experiment", help="Broken on purpose, or not of this matrix: not for the site.")
    ] = False,
    results: Annotated[
        Path | None, typer.Option("--results", metavar="FOLDER", help="Has runs.jsonl; default: results.")
    ] = None,
) -> None:
    """Append a validation run to results/runs.jsonl. Several folders: parts of one run on one machine."""
    evidence = joined([(str(folder), schemas.read_evidence(folder / "evidence.json")) for folder in folders])
    verdict = judge(evidence.claim_set, evidence)
    line = records.line_of(
        evidence, verdict, where, size=_size(folders, evidence.digest), kept=keep, experiment=experiment
    )
    target = results or paths.workspace().results
    # A part that was read keeps its bytes, of whatever version; what was joined is written anew.
    content = (folders[0] / "evidence.json").read_bytes() if len(folders) == 1 else evidence.dumps().encode() + b"\n"
    records.append(target, line, content)
    typer.echo(f"{target / records.LINES}: {line.id}, {verdict.overall}")


def _size(folders: Sequence[Path], digest: str) -> int:
    """What build.json says of this image; 0 where there is none."""
    files = [folder / "build.json" for folder in folders]
    built = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    return next((int(one["bytes"]) for one in built if one.get("digest") == digest), 0)


if __name__ == "__main__":
    run(main)
