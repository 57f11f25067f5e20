"""Build and validate one image for the nightly matrix: the control and the canary.

The control is built as it is locked, the canary from the newest versions. Where the canary is worse
than the control, a bisection finds the packages that break it. What builds and validates is
injected (`ValidateSet`), and so are the resolver and the clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from images.building import validating
from images.comparison.differences import Comparison, ImageRecord, compare, list_changes
from images.locking import lock_file, uv
from images.nightly import bisection, results, sets
from images.nightly.bisection import is_failing
from images.nightly.results import BreakageLine, Job, JobLine, Outcome
from images.nightly.sets import Locked, NightlyOptions, SetResult
from images.planning.image import Image
from images.planning.plan import Planned
from images.validation.rows import Change, tier_counts
from validate.judging import Status


@dataclass(frozen=True, kw_only=True)
class ImageResult:
    """Both jobs of one image."""

    image: str
    control: JobLine
    canary: JobLine
    breakages: tuple[BreakageLine, ...] = ()
    proposed: Locked | None = None
    """The lock of a canary that is as good as the control."""
    comparison: Comparison | None = None
    """The canary beside the control, if it is proposed."""

    @property
    def broken(self) -> bool:
        """Return whether the control or the canary failed in any way."""
        bad = (Outcome.FAIL, Outcome.NOT_BUILT, Outcome.UNRESOLVED)
        return self.control.outcome in bad or self.canary.outcome in bad


def run(planned: Planned, image: Image, options: NightlyOptions) -> ImageResult:
    """Test an image as it is locked and with the newest versions, and find out what breaks it.

    The image as it is locked is called the control, and the one with the newest versions the
    canary. There is no canary if there are no newer versions, or none that fit together. Each
    result is appended to the results' file as soon as it is known. Raises UserError if there is no
    lock, or if an index or the engine does not answer.
    """
    # The control is built even if there will be no canary: it shows that the committed lock can
    # still be built from nothing.
    control = Locked(image=image, lock=lock_file.read(image, options.sources.workspace.locks))
    control_result = options.validate(control, options.tiers, Job.CONTROL)
    control_line = _append_result(planned, control, Job.CONTROL, (), control_result, options)

    def without_canary(outcome: Outcome, **more: Any) -> ImageResult:
        """Return the result of an image whose canary is not built. `more`: fields of JobLine."""
        canary_line = _append(planned, Job.CANARY, outcome, options, **more)
        return ImageResult(image=planned.name, control=control_line, canary=canary_line)

    # The matrix may hold the pins of this torch back until some day.
    why_kept = options.sources.matrix.nightly.why_kept(str(image.name.torch), options.now().date())
    if why_kept:
        return without_canary(Outcome.UNCHANGED, versions=control.lock.hash, cause=why_kept)

    options.progress(planned.name, "resolving the newest versions")
    try:
        canary = _resolve_canary(control, planned.name, options)
    except uv.NoSolution as error:
        return without_canary(Outcome.UNRESOLVED, cause=error.problems[0].cause)
    pinned = [pin.name for pin in image.pins]
    changes = list_changes(control.versions, canary.versions, pinned)
    if not changes:
        return without_canary(Outcome.UNCHANGED, versions=control.lock.hash)

    moved_pins = ", ".join(str(change) for change in changes if change.pinned)
    options.progress(planned.name, f"canary: {moved_pins}")
    canary_result = options.validate(canary, options.tiers, Job.CANARY)
    canary_line = _append_result(planned, canary, Job.CANARY, changes, canary_result, options)

    # Find the packages whose new versions break claims. Without a broken claim, nothing is built.
    broken_claims = bisection.find_regressions(control_result, canary_result)
    search = bisection.Search(
        planned=planned, control=control, canary=canary, changes=changes, options=options
    )
    breakages = tuple(search.breakages(broken_claims))

    # The newest versions are proposed for the lock if nothing is worse with them.
    proposed, comparison = None, None
    if is_as_good(control_result, canary_result):
        proposed = canary
        comparison = compare(
            _image_record(control, control_line, control_result),
            _image_record(canary, canary_line, canary_result),
        )
    return ImageResult(
        image=planned.name,
        control=control_line,
        canary=canary_line,
        breakages=breakages,
        proposed=proposed,
        comparison=comparison,
    )


def _image_record(locked: Locked, line: JobLine, result: SetResult) -> ImageRecord:
    """Return what a nightly job recorded of an image, to compare control and canary.

    `locked`: the image with its lock. `line`: the job's line. `result`: what was judged of it.
    """
    return ImageRecord(
        label=str(line.job),
        name=line.image,
        source=f"lock {line.versions}",
        digest=line.digest,
        date=line.date,
        gpus=result.gpus,
        driver=result.driver,
        pins=[pin.name for pin in locked.image.pins],
        packages=locked.versions,
        all_packages=True,
        bytes=result.bytes,
        layers=result.layers,
        layer_bytes=result.layer_bytes,
        tiers=line.tiers,
        claims=result.claims,
        steps=result.steps,
    )


def _resolve_canary(control: Locked, name: str, options: NightlyOptions) -> Locked:
    """Return the control's image, locked at the newest versions that the matrix and facts allow.

    `name` is that of the image, for messages. Raises uv.NoSolution if no versions fit together.
    """
    refused = sets.find_refused_versions(control.image, options.sources)
    requirements = sets.list_requirements(control, options.sources.matrix.nightly, refused)
    newest_versions = uv.resolve_versions(
        requirements, control.lock.inputs, preferred={}, run=options.run, where=name
    )
    return sets.relock(control, newest_versions, options.run)


def is_as_good(control: SetResult, canary: SetResult) -> bool:
    """Return whether an image with the newest versions (the canary) is as good as the locked one.

    The locked one is the control. Each claim must have the same verdict in both, or pass in the
    canary. False also if the control could not be built, or if something of the canary that needs
    no GPU was not tested.
    """
    if control.cause:
        return False
    judged_tiers = {claim.tier for claim in canary.claims}
    if not judged_tiers >= set(validating.ANYWHERE):
        return False

    # Each claim of the control must have the same verdict in the canary, or pass there.
    for claim in control.claims:
        if canary.verdict(claim.key) not in (claim.verdict, Status.PASS):
            return False
    # The canary may have claims that the control lacks: they must not fail.
    for claim in canary.claims:
        if claim.verdict is Status.FAIL and control.verdict(claim.key) is not Status.FAIL:
            return False
    return True


def _append_result(
    planned: Planned,
    locked: Locked,
    job: Job,
    changes: Sequence[Change],
    result: SetResult,
    options: NightlyOptions,
) -> JobLine:
    """Append the line of a nightly job to the results, report it, and return it.

    job: `control`, with the committed lock, or `canary`, with the newest versions.
    locked: the image that the job has built, with its lock. The line names the lock by its hash.
    changes: how this lock differs from the committed one.
    result: what was judged of the image, or why it could not be built.
    """
    line = _append(
        planned,
        job,
        _outcome(result),
        options,
        versions=locked.lock.hash,
        cause=result.cause,
        tiers=tier_counts(result.claims),
        failing=[claim for claim in result.claims if is_failing(claim)],
        digest=result.digest,
        bytes=result.bytes,
        seconds=result.seconds,
        gpus=list(result.gpus),
        changes=list(changes),
    )
    options.progress(planned.name, results.summarize(line))
    return line


def _outcome(result: SetResult) -> Outcome:
    """Return the outcome of a job.

    PASS needs a required claim, and no claim that fails or is required and UNPROVEN.
    """
    # A result has a cause only if its image could not be built.
    if result.cause:
        return Outcome.NOT_BUILT
    if any(claim.verdict is Status.FAIL for claim in result.claims):
        return Outcome.FAIL
    has_required_claim = any(claim.required for claim in result.claims)
    if has_required_claim and not any(is_failing(claim) for claim in result.claims):
        return Outcome.PASS
    return Outcome.UNPROVEN


def _append(
    planned: Planned, job: Job, outcome: Outcome, options: NightlyOptions, **more: Any
) -> JobLine:
    """Append a line about a nightly job of an image to the results, and return the line.

    `job` is `control` or `canary`, and `outcome` says how the job ended. `more` are further fields
    of JobLine.
    """
    line = JobLine(
        date=options.now(),
        image=planned.name,
        job=job,
        outcome=outcome,
        revision=options.sources.revision,
        **more,
    )
    results.append(line, options.results)
    return line
