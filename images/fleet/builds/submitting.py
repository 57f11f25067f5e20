"""Builds handed to workers: the jobs of images, and the verdict on what comes back. A worker's own is not used."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.building import records, trying
from images.config import paths
from images.config.matrix import Sources
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
from validate.evidence import Evidence
from validate.judge import Verdict, explain, judge


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
            yield by_key[ended.key], result_of(ended)
    finally:
        executor.cancel()


def result_of(ended: Ended) -> BuildResult | UserError:
    """What a worker gave back, or why it gave nothing."""
    if ended.built is None:
        cause = f"its worker gave no result: {ended.cause or 'it ended'}"
        then = "give the same command again: what the engines of the workers have cached is not built again"
        return UserError(Problem(where=ended.key, cause=cause, then=then), code=1)
    if ended.built.problems:
        told = ended.built.problems
        return UserError([Problem(where=one.where, cause=one.cause, then=one.then) for one in told], code=1)
    return ended.built


def claims_of(image: Image, lock: Lock, labels: Mapping[str, str], sources: Sources, cache: Path) -> ClaimSet:
    """What an image that was built elsewhere is held to, by this checkout."""
    return image_claims(trying.claim_context(image, lock, labels, sources, cache).on_host(NO_GPU))


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
