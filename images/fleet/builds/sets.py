"""The judge of a nightly run whose sets of versions are built and validated by workers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.building import validating
from images.config.matrix import Sources
from images.errors import UserError
from images.fleet.builds import description, submitting
from images.fleet.builds.model import BuildJob, BuildResult, url_digest
from images.fleet.builds.pool import Pool
from images.fleet.submission import Submission
from images.locking import lock_file
from images.nightly import judge as nightly_judge
from images.nightly import overlay
from images.nightly.canary import Locked
from images.nightly.options import Judge
from images.nightly.state import Trial
from images.planning import plan
from images.planning.image import Image
from validate.claims import ClaimSet, Tier


@dataclass(frozen=True, kw_only=True)
class Parent:
    """An image that versions are laid over (`--over`)."""

    reference: str
    """What workers pull: `HOST/NAME@sha256:...`."""
    digest: str
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SetOptions:
    """How every set is built."""

    sources: Sources
    out: Path
    cache: Path
    bases: Mapping[str, str]
    tiers: Sequence[Tier] = ()
    base: str = "auto"
    wheel_mirror: str = ""
    parents: Mapping[str, Parent] | None = None
    """Name -> image that versions are laid over; None: each set is built as an image is."""


def on_workers(pool: Pool, submission: Submission, options: SetOptions) -> Judge:
    """A judge for nightly runs. It may be asked by many threads at once.

    It raises UserError for a worker that was lost, and for a failure that the versions did not cause.
    """

    def judge(locked: Locked, tiers: Sequence[Tier], label: str) -> Trial:
        with tempfile.TemporaryDirectory(prefix="truetag-lock-") as scratch:
            # S10 asks what new versions bring: it is measured once, here, and travels with the lock.
            files = nightly_judge.write_lock(locked, Path(scratch))
            known = Locked(image=locked.image, lock=lock_file.read(locked.image, Path(scratch)))
        asked = tuple(tiers or options.tiers) or validating.ANYWHERE
        job = job_of(known, files, asked, label, options)
        placed = submitting.placed(job, submission, wheel_mirror=options.wheel_mirror)
        answer = submitting.answer_of(pool.run(placed), submission.run)
        return _trial(job, answer, known, options)

    return judge


def job_of(
    locked: Locked, files: Mapping[str, bytes], tiers: Sequence[Tier], label: str, options: SetOptions
) -> BuildJob:
    """What a worker is told of a set of versions. Pure. `files`: path below `locks` -> content."""
    image = locked.image
    parent = (options.parents or {}).get(str(image.name))
    return BuildJob(
        image=str(image.name),
        context=description.context_digest(locked, options.sources, options.bases),
        tiers=tuple(tiers),
        platform=image.platform,
        label=label,
        base=options.base,
        bases=dict(options.bases),
        wheel_mirror=url_digest(options.wheel_mirror),
        pins=description.moved_pins(_planned(image, options.sources), image),
        lock={path: content.decode() for path, content in files.items()},
        over=parent.reference if parent else "",
        over_digest=parent.digest if parent else "",
    )


def _planned(image: Image, sources: Sources) -> Image:
    planned = plan.plan_one(image.name, sources).image
    return planned or image


def _trial(job: BuildJob, answer: BuildResult | UserError, locked: Locked, options: SetOptions) -> Trial:
    """What the evidence says by the claims of this checkout. Raises UserError: there is none, or it is of no use."""
    if isinstance(answer, BuildResult) and answer.cause:
        return Trial(claims=(), cause=answer.cause, seconds=round(answer.seconds, 1))
    found = submitting.image_of(answer)
    if isinstance(found, UserError):
        raise found
    folder = options.out / f"{job.image}-{job.label}"
    evidence, verdict = submitting.judged(job, found, _claims(locked, found, options), folder)
    trial = nightly_judge.trial_of(found.digest, found.bytes, evidence, verdict)
    return trial.model_copy(update={"seconds": round(found.seconds, 1)})


def _claims(locked: Locked, found: BuildResult, options: SetOptions) -> ClaimSet:
    parent = (options.parents or {}).get(str(locked.image.name))
    if parent:
        return overlay.claims_of(locked, parent.labels, options.sources.facts)
    return submitting.claims_of(locked.image, locked.lock, found.labels, options.sources, options.cache)
