"""Judge what the workers of a fleet measured, and write each task's results to a folder of its own.

The claims are those of this checkout.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from images.building import naming, run_files, validating
from images.config.matrix import Sources
from images.config.names import ImageName
from images.context.labels import LABELS
from images.engine import host_gpus
from images.errors import UserError, failed
from images.fleet.worker import Lost, Measured, Result, Task
from images.planning import plan
from images.publish import gate
from validate.evidence import Evidence
from validate.judge import Verdict, explain
from validate.judging import Status, listed

WORKER_FILE = "worker.json"
"""The file that says which machine measured an image, and where it was pulled from or pushed to."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a task: a verdict, or the reason why there is none."""

    task: Task
    machine: str = ""
    reference: str = ""
    verdict: Verdict | None = None
    """None if there is no evidence to judge."""
    cause: str
    """Why the task failed or the image did not pass; empty if all was judged and nothing failed."""

    @property
    def verdict_word(self) -> str:
        """Return the verdict as a word, or `no verdict`."""
        return str(self.verdict.overall) if self.verdict else "no verdict"


def clear(folder: Path) -> None:
    """Remove the results of an earlier run: its verdict is not about the evidence of this run."""
    for name in (*run_files.VALIDATION_FILES, "build.json", WORKER_FILE):
        (folder / name).unlink(missing_ok=True)


def finish(task: Task, result: Result, sources: Sources, folder: Path) -> Outcome:
    """Judge what a worker measured of an image, write it to a folder, and return the outcome.

    `sources` has the matrix and facts, from which the claims about the image are written. The
    verdict is written last. If the worker was lost, or its evidence cannot be read or judged, the
    outcome has a cause and no verdict. Nothing is raised, so that the other tasks go on.
    """
    if isinstance(result, Lost):
        return Outcome(task=task, cause=result.cause)
    try:
        evidence = Evidence.loads(result.evidence)
    except (ValueError, LookupError, TypeError) as error:
        # The worker may have another release of truetag.
        return Outcome(task=task, cause=f"on {result.machine}: its evidence can't be read: {error}")
    try:
        verdict = judge_by_our_claims(task, result, evidence, sources)
    except UserError as error:
        return Outcome(task=task, cause=str(error.problems[0]))

    # An image that was pulled has no build.json.
    if result.build:
        run_files.write_json(folder / "build.json", json.loads(result.build))
    run_files.write_json(
        folder / WORKER_FILE, {"machine": result.machine, "reference": result.reference}
    )
    run_files.record_validation(folder, evidence, verdict)
    return Outcome(
        task=task,
        machine=result.machine,
        reference=result.reference,
        verdict=verdict,
        cause=why_no_pass(verdict, evidence),
    )


def judge_by_our_claims(
    task: Task, result: Measured, evidence: Evidence, sources: Sources
) -> Verdict:
    """Judge evidence by the claims that this checkout writes for the machine that measured it.

    A claim is a statement about the image; evidence is what a worker measured to test it. Claims
    that the worker did not measure are UNPROVEN. Raises UserError if the worker built the image by
    another matrix than this checkout's.
    """
    # This is None if the matrix of this checkout refuses the image.
    image = plan.plan_one(ImageName.parse(task.image), sources).image
    # An image that was pulled may be older than the matrix.
    is_built = bool(result.build)
    revision = result.labels.get(f"{LABELS}.matrix-revision", "")
    if image is None or (is_built and revision != image.revision):
        cause = "the worker built this image by another matrix.yaml than the one that is here now"
        then = "give the command again, and do not edit matrix.yaml before its tasks have ended"
        raise failed(task.key, cause, then)
    claims = validating.claims_of(
        image,
        sources,
        result.labels,
        result.steps,
        task.tiers,
        only=task.only,
        attachment=host_gpus.of_host(evidence.host),
    )
    return explain(gate.judge_by_claims(evidence, claims, task.tiers))


def why_no_pass(verdict: Verdict, evidence: Evidence) -> str:
    """Return why a verdict is not PASS, or why it can't be trusted; empty if all is well.

    `evidence` has what was measured. It also says how each probe (a program that measures) ended: a
    verdict counts only if each ran to its end.
    """
    # Tiers may be left out on purpose (--tier). Only a name needs all of them.
    cause = naming.why_withheld(verdict, evidence, validating.ANYWHERE)
    if cause:
        return cause

    # A required claim that is UNPROVEN does not withhold a name, but the verdict is not PASS.
    unproven = []
    for judged in verdict.claims_with(Status.UNPROVEN):
        if judged.claim.required:
            unproven.append(judged)
    if not unproven:
        return ""
    keys = listed([judged.claim.key for judged in unproven])
    return f"UNPROVEN: {keys}: {unproven[0].reason}"
