"""Builds handed to workers: the jobs of images, and the verdict on what comes back. A worker's own is not used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from images.building import records, trying, validating
from images.config.matrix import Sources
from images.context import base_images
from images.context import labels as image_labels
from images.engine.gpus import NO_GPU
from images.errors import Problem, UserError
from images.fleet import submission as submitted
from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.builds.worker import BuildAssignment
from images.fleet.executors.executor import Ended, Placed
from images.fleet.results import error_of
from images.fleet.submission import Submission, matrix_file
from images.locking.lock_file import Lock
from images.planning.image import Image
from images.validation import limits, schemas
from images.validation.claims.image import image_claims
from validate import hints
from validate.claims import ClaimSet
from validate.evidence import Evidence
from validate.judge import Verdict, explain, judge
from validate.judging import listed

_AGAIN = "give the same command with --resume: what is built, or cached by the workers' engines, is not built again"

_BUILD = "the same command with --resume builds it again; does the worker have the same checkout?"


class UnusableError(UserError):
    """What a worker gave back allows no verdict, and never will: the job is to be built again."""


def placed(job: BuildJob, submission: Submission, *, ledger: str = "", wheel_mirror: str = "") -> Placed:
    """A job with its machines.

    `ledger`: the folder where its worker keeps what it built. `wheel_mirror`: the URL that the job knows by its digest.
    Raises UserError: fleet.yaml has none of its platform.
    """
    assignment = BuildAssignment(
        job=job.model_dump_json(),
        run=submission.run,
        executor=submission.executor.name,
        matrix=matrix_file(),
        ledger=ledger,
        wheel_mirror=wheel_mirror,
    )
    return submission.placed(job.key, assignment, job.platform, job.image)


def result_of(ended: Ended, run: str) -> BuildResult | UserError:
    """The image that a worker built for this job of this run, or why there is none."""
    return image_of(answer_of(ended, run))


def image_of(answer: BuildResult | UserError) -> BuildResult | UserError:
    """An answer with an image, or what the worker told instead."""
    return answer if isinstance(answer, UserError) else error_of(answer) or answer


def answer_of(ended: Ended, run: str) -> BuildResult | UserError:
    """What a worker gave back to this job of this run, or why it gave nothing."""
    return submitted.answer_of(ended, run, BuildResult, _AGAIN)


def claims_of(image: Image, lock: Lock, labels: Mapping[str, str], sources: Sources, cache: Path) -> ClaimSet:
    """What an image that was built elsewhere is held to, by this checkout."""
    return image_claims(trying.claim_context(image, lock, labels, sources, cache).on_host(NO_GPU))


def require_allowed(job: BuildJob, image: Image, labels: Mapping[str, str]) -> None:
    """See that an image's labels excuse no more than its job allows. Raises UnusableError."""
    causes = []
    if job.base == base_images.AUTO and image_labels.on_custom_base(labels):
        causes.append("stands on a custom base, and none was asked for")
    if job.strict:
        causes += [f"lacks {reason}" for reason in image_labels.declared_missing(image, labels).values()]
    if causes:
        raise UnusableError([Problem(where=job.key, cause=cause, then=_BUILD) for cause in causes], code=1)


def judged(job: BuildJob, result: BuildResult, claims: ClaimSet, folder: Path) -> tuple[Evidence, Verdict]:
    """Judge the evidence of a result by these claims, and keep it with them and the verdict in `folder`.

    The claims that the worker wrote are not kept: whoever reads the evidence again, as `publish` does, must come to the
    verdict of this machine. Raises UnusableError for evidence that is none, or is of another image.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records.forget_trial(folder)
    file = folder / "evidence.json"
    file.write_text(result.evidence, encoding="utf-8")
    try:
        evidence = schemas.read_evidence(file)
    except UserError as error:
        raise UnusableError(error.problems, code=error.code) from None
    if (evidence.digest, evidence.image) != (result.digest, job.image):
        cause = f"the evidence is of {evidence.image} {evidence.digest[:19]}, the image is {result.digest[:19]}"
        raise UnusableError(Problem(where=job.key, cause=cause, then=_BUILD), code=1)
    held_to = limits.of_evidence(claims, evidence).of(job.tiers)
    evidence = replace(evidence, claims=held_to.claims, recorded_sha256="")
    verdict = explain(judge(held_to, evidence, job.tiers), hints.known())
    records.record_trial(folder, evidence, verdict)
    return evidence, verdict


def why_withheld(job: BuildJob, evidence: Evidence, verdict: Verdict) -> str:
    """Why an image that a worker built gets no name; empty if it gets it.

    What an engine can't give is a reason for a trial on this machine alone: a worker could say anything.
    """
    if withheld := validating.why_withheld(verdict, evidence, job.tiers):
        return withheld
    lacking = limits.not_given(evidence)
    return f"its worker says that it could not measure {listed(sorted(lacking))}" if lacking else ""
