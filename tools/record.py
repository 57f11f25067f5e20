"""Append a validation run to results/runs.jsonl: `python -m tools.record FOLDER... --as WHERE`."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from images.commands import common, releases
from images.config import paths
from images.config.matrix import Sources
from images.context.labels import LABELS
from images.errors import Problem, UserError, command
from images.publish import gate
from images.site import records
from images.validation.rows import read_evidence
from images.validation.validation_run import merge_records
from tools import run
from validate.claims import HOST_PROBE, Claim
from validate.evidence import Evidence, Outcome, Record
from validate.judge import judge
from validate.judging import Status

_MACHINE_KEYS = ("engine", "cpus")
"""What evidence says of its machine, and must be the same in all parts of a run."""
_GPU_KEYS = ("gpus", "driver")
"""The same for parts that were measured with GPUs. Others don't know of any."""


class Part(NamedTuple):
    """A part of a run, such as its gpu tier."""

    place: str
    """The folder that it comes from."""
    evidence: Evidence


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
    """Append a validation run to results/runs.jsonl. Several folders: parts of one run."""
    parts = [Part(str(folder), read_evidence(folder / "evidence.json")) for folder in folders]
    if not experiment:
        require_own(parts, common.sources(None), unchecked=unchecked)
    evidence = join(parts)
    verdict = judge(evidence.claim_set, evidence)
    line = records.make_run_line(
        evidence,
        verdict,
        where,
        size=_image_size(folders, evidence.digest),
        kept=keep,
        experiment=experiment,
    )

    # A single part keeps its bytes, whatever version wrote them. What was joined is written anew.
    if len(folders) == 1:
        content = (folders[0] / "evidence.json").read_bytes()
    else:
        content = evidence.dumps().encode() + b"\n"
    folder = results or paths.CHECKOUT.results
    append(folder, line, content)
    typer.echo(f"{folder / records.LINES}: {line.id}, {verdict.overall}")


def require_own(parts: Sequence[Part], sources: Sources, *, unchecked: bool = False) -> None:
    """Raise UserError unless today's matrix makes the image, and its claims hold as well as then.

    A derived image is refused, because it is held to less than ours, and its faults are not ours.
    So is a run that passed more claims when it was made than it would by today's. `unchecked`: an
    image for which today's matrix has no claims is taken.
    """
    # Labels are measured by one part only, the one with the static tier.
    labels_by_digest: dict[str, dict[str, str]] = {}
    for part in parts:
        record = part.evidence.record_of(HOST_PROBE)
        if record and record.measurements:
            labels_by_digest[part.evidence.digest] = dict(record.measurements[0].evidence["labels"])

    then = (
        "record a run of the image as `build` made it; give --experiment for any other image, or "
        "--unchecked for an image that the matrix of an earlier day made"
    )
    problems = []
    for part in parts:
        labels = labels_by_digest.get(part.evidence.digest, {})
        cause = _why_not_own(part.evidence, labels, sources, unchecked=unchecked)
        if cause:
            problems.append(Problem(where=part.place, cause=cause, then=then))
    if problems:
        raise UserError(problems)


def _why_not_own(
    part: Evidence, labels: Mapping[str, str], sources: Sources, *, unchecked: bool
) -> str:
    """Return why a part is refused (see require_own); empty if it is not.

    `labels`: the image's; empty if no part measured them.
    """
    steps = part.host.get("steps_above")
    if steps:
        return f"the run is of an image with {steps} steps above {part.image}"
    other_base = part.host.get("other_base")
    if other_base:
        return f"the run is of {part.image} on another base, {other_base}"
    # Older evidence does not note the name that the image bears: its label then says it.
    name = part.host.get("labelled", labels.get(f"{LABELS}.image", part.image))
    if name != part.image:
        return f"the run is of an image that is called {name or 'nothing'}, not {part.image}"

    claims = releases.claims_of_published(labels, part, sources)
    if claims:
        passed_then = judge(part.claim_set, part).claims_with(Status.PASS)
        passed_today = gate.judge_by_claims(part, claims).claims_with(Status.PASS)
        if len(passed_then) > len(passed_today):
            return (
                "the run passed by other claims than matrix.yaml writes today: validate the image "
                "again"
            )
        return ""
    if unchecked:
        return ""
    if not labels:
        return "no part of the run measured the static tier, which says how the image was made"
    return "matrix.yaml makes another image of this name today, or has no lock of it"


def join(parts: Sequence[Part]) -> Evidence:
    """Return the evidence of all parts of a run as one.

    Raises UserError for parts of other images or machines. Also if two parts measured one claim:
    one result would hide the other.
    """
    first = parts[0].evidence
    if len(parts) == 1:
        return first

    # The machine as the first part with GPUs saw it, else as the first part did.
    with_gpus = [part.evidence.host for part in parts if part.evidence.host.get("gpus")]
    machine = with_gpus[0] if with_gpus else first.host

    problems: list[Problem] = []
    place_by_claim: dict[str, str] = {}
    for part in parts:
        problems += _why_not_of_run(part, first, machine)
        for claim in part.evidence.claims:
            if claim.key in place_by_claim:
                cause = (
                    f"{claim.key} was measured in {place_by_claim[claim.key]} already: "
                    "one result would hide the other"
                )
                then = "record them one by one, each with another word for --as"
                problems.append(Problem(where=part.place, cause=cause, then=then))
            place_by_claim[claim.key] = part.place
    if problems:
        raise UserError(problems)

    host = machine.copy()
    # Each part drew a seed of its own, which stands in its records.
    host.pop("seed", None)
    # Nor does what one of the runs depended on hold for all of them.
    host.pop("inputs", None)
    host["out_of_memory"] = any(part.evidence.host.get("out_of_memory") for part in parts)
    dates = [part.evidence.host["date"] for part in parts if part.evidence.host.get("date")]
    if dates:
        host["date"] = min(dates)

    probe_records: list[Record] = []
    claims: list[Claim] = []
    for part in parts:
        probe_records += part.evidence.records
        claims += part.evidence.claims
    return Evidence(
        image=first.image,
        digest=first.digest,
        records=merge_records(probe_records),
        host=host,
        claims=tuple(claims),
    )


def _why_not_of_run(part: Part, first: Evidence, machine: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield why a part is not of the same run as the first one, on this machine."""
    evidence = part.evidence
    keys = [*_GPU_KEYS, *_MACHINE_KEYS] if evidence.host.get("gpus") else _MACHINE_KEYS
    differing = [key for key in keys if evidence.host.get(key) != machine.get(key)]
    then = "record this part alone, with another word for --as"
    if (evidence.image, evidence.digest) != (first.image, first.digest):
        cause = (
            f"this part is of {evidence.image} {evidence.digest[:19]}, and the first one is of "
            f"{first.image} {first.digest[:19]}"
        )
        yield Problem(where=part.place, cause=cause, then=then)
    elif differing:
        cause = f"this part was measured on another machine ({', '.join(differing)} differ)"
        yield Problem(where=part.place, cause=cause, then=then)

    # Inputs of one part are drawn with one seed. A record with another one is left from before.
    strange = []
    for record in evidence.records:
        is_measured = record.outcome is Outcome.COMPLETED
        if is_measured and record.seed != evidence.host.get("seed", record.seed):
            strange.append(record.probe)
    if strange:
        cause = (
            "this part has records of another run, whose inputs were drawn with another seed: "
            f"{', '.join(strange)}"
        )
        then = f"validate the image again: `{command('validate', evidence.image)}`"
        yield Problem(where=part.place, cause=cause, then=then)


def append(folder: Path, line: records.RunLine, evidence: bytes) -> None:
    """Add a line to FOLDER/runs.jsonl, and write its evidence if it is to be kept.

    Raises UserError if the line's id is taken.
    """
    if line.id in {known.id for known in records.read(folder)}:
        problem = Problem(
            where=f"--as {line.id}",
            cause="results/runs.jsonl has a run of this ID already",
            then="give --as another word",
        )
        raise UserError(problem)
    if line.kept:
        write_evidence(folder, line.id, evidence)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / records.LINES).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line.model_dump(mode="json"), separators=(",", ":")) + "\n")


def write_evidence(folder: Path, run_id: str, content: bytes) -> Path:
    """Compress an evidence.json into the folder `evidence`, and return the file.

    The same content gives the same bytes.
    """
    path = folder / "evidence" / f"{run_id}.json.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    return path


def _image_size(folders: Sequence[Path], digest: str) -> int:
    """Return the bytes of an image by the build.json in one of these folders; 0 if none has it."""
    for folder in folders:
        file = folder / "build.json"
        if file.is_file():
            build = json.loads(file.read_text(encoding="utf-8"))
            if build.get("digest") == digest:
                return int(build["bytes"])
    return 0


if __name__ == "__main__":
    run(main)
