"""Appends a validation run to results/runs.jsonl: `python -m tools.record FOLDER... --as WHERE`."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from images.commands import common, releases
from images.config import paths
from images.config.matrix import Sources
from images.context.labels import LABELS
from images.errors import Problem, UserError
from images.publish import gate
from images.site import records
from images.validation.rows import read_evidence
from images.validation.validation_run import merge_records
from tools import run
from validate.claims import HOST_PROBE
from validate.evidence import Evidence, Outcome
from validate.judge import judge
from validate.judging import Status

_MACHINE = ("gpus", "driver", "engine", "cpus")
"""What must be the same. A part whose tiers take no GPU knows of none."""


def main(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="out/NAME, as `build` or `validate` wrote it; parts of one run, each.",
        ),
    ],
    where: Annotated[
        str, typer.Option("--as", metavar="WHERE", help="The machine, or the fault: `h100`, say.")
    ],
    keep: Annotated[
        bool, typer.Option("--keep-evidence", help="Keep its evidence, for tests that replay it.")
    ] = False,
    experiment: Annotated[
        bool,
        typer.Option(
            "--experiment", help="Broken on purpose, or not of this matrix: not for the site."
        ),
    ] = False,
    unchecked: Annotated[
        bool,
        typer.Option(
            "--unchecked",
            help="Of an older matrix, whose claims alone judge it: today's has none for it.",
        ),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option("--results", metavar="FOLDER", help="Has runs.jsonl; default: results."),
    ] = None,
) -> None:
    """Append a validation run to results/runs.jsonl. Several folders: parts of one run on one machine."""
    parts = [(str(folder), read_evidence(folder / "evidence.json")) for folder in folders]
    if not experiment:
        require_own(parts, common.sources(None), unchecked=unchecked)
    evidence = joined(parts)
    verdict = judge(evidence.claim_set, evidence)
    line = records.make_run_line(
        evidence,
        verdict,
        where,
        size=_size(folders, evidence.digest),
        kept=keep,
        experiment=experiment,
    )
    target = results or paths.CHECKOUT.results
    # A part that was read keeps its bytes, of whatever version; what was joined is written anew.
    content = (
        (folders[0] / "evidence.json").read_bytes()
        if len(folders) == 1
        else evidence.dumps().encode() + b"\n"
    )
    append(target, line, content)
    typer.echo(f"{target / records.LINES}: {line.id}, {verdict.overall}")


def require_own(
    parts: Sequence[tuple[str, Evidence]], sources: Sources, *, unchecked: bool = False
) -> None:
    """Raises UserError for evidence of another image than the matrix's, or that says more than today's claims do.

    An image that stands on one of ours is held to less, and what is wrong in it is not wrong in ours. `unchecked`: one
    that today's matrix has no claims for is taken.
    """
    causes: list[tuple[str, str]] = []
    read = {
        part.digest: record
        for _, part in parts
        if (record := part.record_of(HOST_PROBE)) and record.measurements
    }
    for place, part in parts:
        record = read.get(part.digest)
        labels = dict(record.measurements[0].evidence["labels"]) if record else {}
        name = part.host.get("labelled", labels.get(f"{LABELS}.image", part.image))
        if steps := part.host.get("steps_above"):
            causes.append((place, f"is of an image with {steps} steps above {part.image}"))
        elif name != part.image:
            causes.append(
                (place, f"is of an image that is called {name or 'nothing'}, not {part.image}")
            )
        elif claims := releases.claims_of_published(labels, part, sources):
            own, today = judge(part.claim_set, part), gate.judge_by_claims(part, claims)
            if len(own.claims_with(Status.PASS)) > len(today.claims_with(Status.PASS)):
                causes.append(
                    (
                        place,
                        "passed by other claims than matrix.yaml writes today: validate it again",
                    )
                )
        elif not unchecked:
            unread = "does not say how its image was made: no part measured its static tier"
            another = "matrix.yaml makes another image of this name today, or has no lock of it"
            causes.append((place, another if labels else unread))
    if causes:
        then = "record a run of the image that `build` made, or give --experiment; --unchecked for a run of its day"
        raise UserError([Problem(where=place, cause=cause, then=then) for place, cause in causes])


def joined(parts: Sequence[tuple[str, Evidence]]) -> Evidence:
    """One evidence of parts, each with the place that it came from.

    Raises UserError: parts of other images or machines, or a claim that two parts measured, as one of them would hide
    what the other found.
    """
    first = parts[0][1]
    if len(parts) == 1:
        return first
    # The host as the first part with GPUs saw it; as the first part, where none had any.
    machine = next((part.host for _, part in parts if part.host.get("gpus")), first.host)
    problems: list[Problem] = []
    measured: dict[str, str] = {}
    for place, part in parts:
        then = "record it alone, with another word"
        keys = [key for key in _MACHINE if part.host.get("gpus") or key not in ("gpus", "driver")]
        differing = [key for key in keys if part.host.get(key) != machine.get(key)]
        if (part.image, part.digest) != (first.image, first.digest):
            cause = f"is of {part.image} {part.digest[:19]}, the first part of {first.image} {first.digest[:19]}"
            problems.append(Problem(where=place, cause=cause, then=then))
        elif differing:
            problems.append(
                Problem(
                    where=place, cause=f"is of another machine: {', '.join(differing)}", then=then
                )
            )
        measures = [one for one in part.records if one.outcome is Outcome.COMPLETED]
        strange = [one.probe for one in measures if one.seed != part.host.get("seed", one.seed)]
        if strange:
            cause = f"has records of another run, whose inputs were drawn with another seed: {', '.join(strange)}"
            problems.append(Problem(where=place, cause=cause, then="validate it again"))
        for claim in (one.key for one in part.claims):
            if before := measured.get(claim):
                cause = (
                    f"{claim} was measured in {before} already: one of both would hide the other"
                )
                then = "record one of them, and the other with another word"
                problems.append(Problem(where=place, cause=cause, then=then))
            measured[claim] = place
    if problems:
        raise UserError(problems)
    dates = [part.host["date"] for _, part in parts if part.host.get("date")]
    ran_out = any(part.host.get("out_of_memory") for _, part in parts)
    host = machine.copy()
    host.pop("seed", None)  # each part drew its own, which stands in its records
    host["out_of_memory"] = ran_out
    if dates:
        host["date"] = min(dates)
    return Evidence(
        image=first.image,
        digest=first.digest,
        records=merge_records([record for _, part in parts for record in part.records]),
        host=host,
        claims=tuple(claim for _, part in parts for claim in part.claims),
    )


def append(folder: Path, line: records.RunLine, evidence: bytes) -> None:
    """Add a line to FOLDER/runs.jsonl, and its evidence if it is kept. Raises UserError where the id is taken."""
    if line.id in {known.id for known in records.read(folder)}:
        problem = Problem(
            where=f"--as {line.id}",
            cause="this run is recorded already",
            then="choose another word",
        )
        raise UserError(problem)
    if line.kept:
        write_evidence(folder, line.id, evidence)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / records.LINES).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line.model_dump(mode="json"), separators=(",", ":")) + "\n")


def write_evidence(folder: Path, run_id: str, content: bytes) -> Path:
    """Compress an evidence.json. The same content gives the same bytes."""
    path = folder / "evidence" / f"{run_id}.json.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    return path


def _size(folders: Sequence[Path], digest: str) -> int:
    """What build.json says of this image; 0 where there is none."""
    files = [folder / "build.json" for folder in folders]
    built = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    return next((int(one["bytes"]) for one in built if one.get("digest") == digest), 0)


if __name__ == "__main__":
    run(main)
