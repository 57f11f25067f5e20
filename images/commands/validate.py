"""The verb `validate`: judge an image by the claims of an image name, or judge evidence again."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from images.building import earlier_run, naming, run_files, validating
from images.commands import common
from images.commands.options import (
    Again,
    EngineUrl,
    Gpus,
    Json,
    MatrixFile,
    OutFolder,
    Passed,
    Tiers,
    require_writable,
)
from images.context import labels as image_labels
from images.engine import private_engine
from images.errors import Problem, UserError, command, failed, wrong
from images.hardware.inventory import GpuMode
from images.validation.derived_image import Changes
from images.validation.rows import read_evidence
from validate import report
from validate.checks import Judges
from validate.claims import AUDIT_OF, Tier
from validate.evidence import Evidence
from validate.judge import Verdict, explain, fit_to_image, judge
from validate.judging import Status
from validate.next_steps import VALIDATE_AGAIN

_MEASURES_NOTHING = "with --evidence nothing is measured, so this would change nothing"
_WHY_NOT_WITH_EVIDENCE = {
    "--image": "with --evidence the image is the one that the file was measured in",
    "--tag": "an image gets its name when it is measured, and --evidence only judges a file again",
    "--claim": "with --evidence all claims in the file are judged, and none can be left out",
    "--out": "with --evidence nothing is written",
    "--matrix": "with --evidence the claims are those in the file, and not those of a matrix",
}
"""Option -> why it is refused with --evidence; of all others, `_MEASURES_NOTHING` is said."""
_WITH_EVIDENCE = (
    "leave it out (--tier, --all and --json go with --evidence), or measure the image: "
    f"`{command('validate', 'NAME')}`"
)


def validate(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The image name whose claims hold.")
    ] = "",
    image: Annotated[
        str,
        typer.Option(
            "--image", metavar="REF", help="The image to judge; default: NAME, or NAME-candidate."
        ),
    ] = "",
    tag: Annotated[
        bool,
        typer.Option(
            "--tag",
            help="Record and name, as `build` does, what was built elsewhere of `render`'s "
            "context.",
        ),
    ] = False,
    evidence: Annotated[
        Path | None,
        typer.Option(
            "--evidence",
            metavar="FILE",
            help="Judge this evidence.json again, by its claims. No engine.",
        ),
    ] = None,
    tier: Tiers = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            "--claim",
            metavar="NAME",
            help="Only this claim (`pins/torch`), check (`pins`), subject (`torch`) or pattern "
            "(`pins/t*`). Repeat it.",
        ),
    ] = None,
    run_anyway: Annotated[
        bool,
        typer.Option(
            "--run-anyway",
            help="Run an image although its files are not as known (`files`, `origin`).",
        ),
    ] = False,
    again: Again = False,
    gpus: Gpus = GpuMode.AUTO,
    everything: Passed = False,
    as_json: Json = False,
    engine: EngineUrl = None,
    out: OutFolder = None,
    matrix: MatrixFile = None,
) -> None:
    """Judge an image by a name's claims, or recorded evidence again.

    For an image built on another one, names what was added. OUT/validate/IMAGE gets evidence,
    verdict and reports. If nothing has changed since the run whose evidence lies there, that is
    judged again. Exits with 1 if a required claim failed.
    """
    _require_one_input(name, evidence)
    if evidence:
        _refuse_options_of_measuring(
            {
                "--image": bool(image),
                "--tag": tag,
                "--claim": bool(claim),
                "--run-anyway": run_anyway,
                "--again": again,
                "--gpus": gpus is not GpuMode.AUTO,
                "--engine": engine is not None,
                "--out": out is not None,
                "--matrix": matrix is not None,
            }
        )
        verdict = _judge_and_show_again(evidence, tier or (), everything, as_json)
        raise typer.Exit(1 if verdict.claims_with(Status.FAIL) else 0)
    if tag and claim:
        cause = (
            "names an image only after all checks have passed, and --claim leaves most of them out"
        )
        raise wrong("--tag", cause, "give the command without --claim, or without --tag")

    sources = common.sources(matrix)
    top = require_writable(out or sources.workspace.out)
    (named_image,) = common.select_accepted([name], sources, exactly_one=True)
    # With --tag, an image that was built elsewhere is recorded and named as `build` does.
    if tag:
        reference = image or f"{named_image.local_name}-candidate"
        folder = top / str(named_image.name)
    else:
        reference = image or named_image.local_name
        folder = top / "validate" / reference.replace("/", "_").replace(":", "_")

    withheld = ""
    with private_engine.open_engine(engine, on_progress=common.say, install=False) as docker_engine:
        image_to_judge = reference
        if tag:
            info = docker_engine.inspect(reference)
            # The ID means the same image until the end, even if the candidate is built anew.
            image_to_judge = info.handle
            missing = image_labels.declared_missing(named_image, info.labels)
            build_record = run_files.make_build_record(folder, info, missing)
        earlier = None if again else earlier_run.read(folder)
        run_files.remove_validation(folder)
        measured = validating.validate_image(
            docker_engine,
            named_image,
            image_to_judge,
            sources,
            tiers=tier or (),
            gpus=gpus,
            only=claim or (),
            run_anyway=run_anyway,
            earlier=earlier,
            compare=common.compare_others(docker_engine, sources),
            say=common.tell,
        )
        if tag:
            run_files.write_json(folder / "build.json", build_record)
            withheld = _why_withheld(measured)
            if not withheld:
                naming.give_name(docker_engine, info.handle, named_image.local_name)

    # What an image on top of ours has changed. With --tag, that is only a reason against a name.
    changes = measured.changes
    recorded_changes = None if tag else changes
    run_files.record_validation(folder, measured.evidence, measured.verdict, recorded_changes)
    typer.echo(f"{folder}/evidence.json", err=True)
    if changes:
        _show_changes(f"{reference} stands on {named_image.name}", changes, as_json=as_json)
    _show(measured.verdict, reference=reference, everything=everything, as_json=as_json)
    if measured.is_reused:
        common.tell(f"{earlier_run.describe_age(measured.evidence)}; {earlier_run.AGAIN}")
    if withheld:
        raise _withheld_error(reference, named_image.local_name, withheld, measured.verdict, folder)
    failures = measured.verdict.claims_with(Status.FAIL)
    raise typer.Exit(1 if any(failure.claim.required for failure in failures) else 0)


def _show_changes(subject: str, changes: Changes, *, as_json: bool) -> None:
    """Print what an image on top of ours has changed. `subject`: which image, and on which."""
    first_line, *other_lines = changes.lines()
    lines = [f"{subject}: {first_line}", *(f"  {line}" for line in other_lines)]
    if not as_json:
        common.show(lines)
        return
    # The standard output has the JSON and nothing else.
    for line in lines:
        common.tell(line)


def _withheld_error(
    reference: str, name: str, reason: str, verdict: Verdict, folder: Path
) -> UserError:
    """Return the error that an image does not get its name (--tag); `folder` has its report."""
    cause = f"{reason}: the image does not get the name {name}"
    again = "build the image and give the command again"
    then = naming.next_step(verdict, f"{folder}/report.md", again)
    return failed(reference, cause, f"{then}; without --tag, an image is judged and not named")


def _why_withheld(measured: validating.Validated) -> str:
    """Return why an image that was built elsewhere gets no name; empty if it gets it."""
    if measured.changes:
        # It was judged by what an image on top of the built one may change.
        return "the image has steps above the one that was built"
    return naming.why_withheld(measured.verdict, measured.evidence, measured.tiers)


def _require_one_input(name: str, evidence: Path | None) -> None:
    """Raise UserError unless there is either an image name or a file with evidence."""
    if bool(name) != bool(evidence):
        return
    cause = "neither a name nor recorded evidence is given"
    if name:
        cause = "a name and --evidence are given"
    then = f"`{command('validate', 'NAME')}` or `{command('validate', '--evidence', 'FILE')}`"
    raise wrong("validate", cause, then)


def _refuse_options_of_measuring(is_given: Mapping[str, bool]) -> None:
    """Raise UserError if an option is given that recorded evidence has no use for (--evidence).

    `is_given`: option -> whether it is given.
    """
    problems = []
    for option, given in is_given.items():
        if given:
            cause = _WHY_NOT_WITH_EVIDENCE.get(option, _MEASURES_NOTHING)
            problems.append(Problem(where=option, cause=cause, then=_WITH_EVIDENCE))
    if problems:
        raise UserError(problems)


def _judge_again(recorded: Evidence, file: Path, tiers: Sequence[Tier]) -> Verdict:
    """Judge recorded evidence by the claims that it contains, only of `tiers` if there are any.

    Evidence is what an earlier run measured to test claims, statements about an image. A tier is a
    group of claims, such as those that need a GPU. Raises UserError, which names the `file` of the
    evidence, if it has no claims of one of these tiers.
    """
    # Without claims of a tier, its verdict would be empty: not even UNPROVEN.
    recorded_tiers = sorted({str(claim.tier) for claim in recorded.claims})
    absent = [tier for tier in tiers if tier not in recorded_tiers]
    if absent:
        cause = f"this evidence has no claims of the {' and '.join(absent)} tier"
        then = f"give --tier only tiers that it has: {', '.join(recorded_tiers)}"
        raise wrong(str(file), cause, then)
    # Evidence of an audit needs judges of its own; None for all other evidence.
    judges = _judges_of(recorded)
    verdict = judge(recorded.claim_set, recorded, tiers or tuple(Tier), judges=judges)
    return explain(verdict)


def _judge_and_show_again(
    file: Path, tiers: Sequence[Tier], everything: bool, as_json: bool
) -> Verdict:
    """Judge the evidence in a file again, print the verdict, and return it.

    Raises UserError if the file is no evidence, or has no claims of one of the tiers.
    """
    recorded = read_evidence(file)
    verdict = _judge_again(recorded, file, tiers)
    _show(verdict, everything=everything, as_json=as_json)
    if verdict.claims_with(Status.UNPROVEN):
        common.tell(_describe_day(recorded))
    return verdict


def _describe_day(recorded: Evidence) -> str:
    """Return a sentence about the day of the claims and records by which evidence is judged again.

    What is recorded since then changes nothing: evidence carries the claims of its own day.
    """
    date = str(recorded.host.get("date", "an unknown day"))
    again = fit_to_image(VALIDATE_AGAIN, recorded.image)
    return (
        f"judged by what was claimed and recorded on {date}, as this evidence has it; "
        f"{again} judges by today's"
    )


def _judges_of(recorded: Evidence) -> Judges | None:
    """Return the additional judges that evidence of an audit needs; None for all other evidence."""
    if recorded.image.startswith(AUDIT_OF):
        from images.audit.expected import AUDIT_JUDGES

        return AUDIT_JUDGES
    return None


def _show(
    verdict: Verdict,
    *,
    reference: str = "",
    everything: bool,
    as_json: bool,
) -> None:
    """Print a verdict as a report or as JSON. `everything`: the report also lists passed claims.

    `reference` is the image that was measured.
    """
    if as_json:
        typer.echo(json.dumps(report.json_data(verdict), indent=1))
        return
    common.show(report.lines(verdict, reference=reference, everything=everything))
