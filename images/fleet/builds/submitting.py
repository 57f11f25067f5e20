"""Builds handed to workers: the jobs of images, and the verdict on what comes back. A worker's own is not used."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.building import records, trying, validating
from images.config import paths
from images.config.matrix import Sources
from images.context import base_images
from images.context import labels as image_labels
from images.engine.gpus import NO_GPU
from images.errors import Problem, UserError
from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.builds.worker import BuildAssignment
from images.fleet.config import Fleet
from images.fleet.executors.executor import Ended, Executor, Placed
from images.locking.lock_file import Lock
from images.planning.image import Image
from images.validation import limits, schemas
from images.validation.claims.image import image_claims
from validate import hints
from validate.claims import ClaimSet
from validate.evidence import Evidence, Outcome, Record
from validate.judge import Verdict, explain, judge
from validate.judging import listed


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The workers, and what all jobs of one command share."""

    fleet: Fleet
    executor: Executor
    run: str
    say: Callable[[str, str], None]
    """Gets a job's key and a sentence."""

    @classmethod
    def new(cls, fleet: Fleet, executor: Executor, say: Callable[[str, str], None]) -> Submission:
        return cls(fleet=fleet, executor=executor, run=uuid.uuid4().hex, say=say)

    def placed(self, job: BuildJob) -> Placed:
        """A job with its machines. Raises UserError: fleet.yaml has none of its platform."""
        fleet = self.fleet.of(job.platform)
        if not fleet.workers:
            then = "add one with `platform:` to fleet.yaml"
            raise UserError(Problem(where=job.image, cause=f"no machine of the fleet is {job.platform}", then=then))
        matrix = paths.workspace().matrix
        assignment = BuildAssignment(
            job=job.model_dump_json(),
            run=self.run,
            executor=self.executor.name,
            matrix=str(matrix) if matrix != paths.RESOURCES / paths.MATRIX_NAME else "",
        )
        return Placed(key=job.key, task=assignment, gpus=0, machines=fleet.plain, on=fleet.workers[fleet.plain])


def results(jobs: Sequence[BuildJob], submission: Submission) -> Iterator[tuple[BuildJob, BuildResult | UserError]]:
    """Each job with its result, as they end. What was begun is cancelled on any way out. Raises UserError."""
    by_key = {job.key: job for job in jobs}
    executor = submission.executor
    try:
        executor.start([submission.placed(job) for job in by_key.values()])
        for key in by_key:
            submission.say(key, executor.states().get(key, "started"))
        for ended in executor.ended():
            yield by_key[ended.key], result_of(ended, by_key[ended.key], submission.run)
    finally:
        executor.cancel()


def result_of(ended: Ended, job: BuildJob, run: str) -> BuildResult | UserError:
    """The image that a worker built for this job of this run, or why there is none."""
    return image_of(answer_of(ended, job, run))


def image_of(answer: BuildResult | UserError) -> BuildResult | UserError:
    """An answer with an image, or what the worker told instead."""
    if isinstance(answer, BuildResult) and answer.problems:
        told = answer.problems
        return UserError([Problem(where=one.where, cause=one.cause, then=one.then) for one in told], code=1)
    return answer


def answer_of(ended: Ended, job: BuildJob, run: str) -> BuildResult | UserError:
    """What a worker gave back to this job of this run, or why it gave nothing.

    A Slurm that was set up anew counts jobs from 1 again: a file of an earlier run can bear the number of a new job.
    """
    if ended.built is None:
        cause = f"its worker gave no result: {ended.cause or 'it ended'}"
        then = "give the same command again: what the engines of the workers have cached is not built again"
        return UserError(Problem(where=job.key, cause=cause, then=then), code=1)
    if (ended.built.key, ended.built.run) != (job.key, run):
        cause = f"its result is of another job: {ended.built.key} of run {ended.built.run[:8]}"
        then = "take the folder `slurm` of --out away, or name another --out; then give the same command again"
        return UserError(Problem(where=job.key, cause=cause, then=then), code=1)
    return ended.built


def claims_of(image: Image, lock: Lock, labels: Mapping[str, str], sources: Sources, cache: Path) -> ClaimSet:
    """What an image that was built elsewhere is held to, by this checkout."""
    return image_claims(trying.claim_context(image, lock, labels, sources, cache).on_host(NO_GPU))


def require_allowed(job: BuildJob, image: Image, labels: Mapping[str, str]) -> None:
    """See that an image's labels excuse no more than its job allows. Raises UserError."""
    causes = []
    if job.base == base_images.AUTO and image_labels.on_custom_base(labels):
        causes.append("stands on a custom base, and none was asked for")
    if job.strict:
        causes += [f"goes without {reason}" for reason in image_labels.declared_missing(image, labels).values()]
    if causes:
        then = "build it again; does the worker have the same checkout?"
        raise UserError([Problem(where=job.key, cause=cause, then=then) for cause in causes], code=1)


def judged(job: BuildJob, result: BuildResult, claims: ClaimSet, folder: Path) -> tuple[Evidence, Verdict]:
    """Judge the evidence of a result by these claims, and keep both in `folder`.

    Raises UserError for evidence that is none, or is of another image.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records.forget_trial(folder)
    file = folder / "evidence.json"
    file.write_text(result.evidence, encoding="utf-8")
    evidence = schemas.read_evidence(file)
    if (evidence.digest, evidence.image) != (result.digest, job.image):
        cause = f"the evidence is of {evidence.image} {evidence.digest[:19]}, the image is {result.digest[:19]}"
        then = "build it again; does the worker have the same checkout?"
        raise UserError(Problem(where=job.key, cause=cause, then=then), code=1)
    verdict = explain(judge(limits.of_evidence(claims, evidence), evidence, job.tiers), hints.known())
    records.record_trial(folder, evidence, verdict)
    return evidence, verdict


def why_withheld(job: BuildJob, claims: ClaimSet, evidence: Evidence, verdict: Verdict) -> str:
    """Why an image that a worker built gets no name; empty if it gets it.

    A trial on this machine measures every claim that it can, or raises. Evidence from elsewhere may lack some, which is
    UNPROVEN and no failure: an image is not named for what nobody looked at.
    """
    if withheld := validating.why_withheld(verdict, job.tiers):
        return withheld
    if lacking := limits.not_given(evidence):
        return f"its worker says that it could not measure {listed(sorted(lacking))}"
    asked = [claim for claim in claims.of(job.tiers).claims if not claim.unproven]
    left_out = [f"{one.id} {one.subject}" for one in asked if not _was_tried(evidence.of(one.probe))]
    return f"its worker did not measure {listed(left_out)}" if left_out else ""


def _was_tried(record: Record | None) -> bool:
    return record is not None and record.outcome is not Outcome.MISSING
