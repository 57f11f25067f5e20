"""What a site is made from, and how index.json is made from it.

Nothing here reads a file: images/commands/site.py does, and puts what it read into SiteInputs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from images.config import selectors
from images.config.matrix import Sources
from images.config.names import ImageName
from images.errors import command
from images.nightly.results import BreakageLine, JobLine
from images.planning import chooser, plan
from images.planning.image import Image
from images.planning.plan import Planned
from images.site import records
from images.site.index import (
    STALE_AFTER_DAYS,
    ImageRow,
    Index,
    RefusedRow,
    TierRun,
    Validation,
    deciding_runs,
)
from images.site.runs import Published, Run, newest_first
from validate.claims import Claim, Tier
from validate.judging import Status

_SHOWN_RUNS = 10
"""Runs that are shown of an image for each tier and GPU, so that pages stay small.

results/ has all of them.
"""
_GPU_TIERS = (Tier.GPU, Tier.MULTIGPU)


@dataclass(frozen=True, kw_only=True)
class SiteInputs:
    """Everything a site is made from, read beforehand."""

    sources: Sources
    today: date
    runs: Sequence[Run] = ()
    nightly: Sequence[JobLine | BreakageLine] = ()
    """Oldest first."""
    repository: str = ""
    published: Sequence[Published] = ()
    closures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Lock -> distribution -> version."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """Lock -> why no image of it can be built, with the next command; the others can."""
    claims: Mapping[str, Sequence[Claim]] = field(default_factory=dict)
    """Image -> what the matrix claims of it today; one that is not here is shown by its runs
    alone."""


def make_index(inputs: SiteInputs) -> Index:
    """Return the content of index.json: what the site says of each image of matrix.yaml.

    Images that can be built come with what was validated, those that the plan refuses with the
    reasons.
    """
    planned_images = plan_images(inputs)
    images = []
    for planned in planned_images:
        if planned.image:
            images.append(_image_row(planned.name, planned.image, inputs))
    return Index(
        date=inputs.today,
        revision=inputs.sources.revision,
        stale_after_days=STALE_AFTER_DAYS,
        gate=list(inputs.sources.matrix.gate),
        repository=inputs.repository,
        images=images,
        refused=list(_refused_rows(planned_images, inputs.sources)),
    )


def plan_images(inputs: SiteInputs) -> tuple[Planned, ...]:
    """Return every image of the site, accepted or refused, newest torch first.

    They are the images of the matrix, and images outside it that were validated: an image for one
    GPU architecture, for example. Accepted ones have an `image`, refused ones have `reasons`.
    """
    matrix_images = plan.plan(inputs.sources)
    names_in_matrix = {planned.name for planned in matrix_images}
    validated_names = {run.image for run in inputs.runs}
    other_images = []
    for text in sorted(validated_names - names_in_matrix):
        # Runs may be of images with any name: leave out what is no name of ours.
        name = selectors.image_name(text)
        if name:
            other_images.append(plan.plan_one(name, inputs.sources))
    images = (*matrix_images, *other_images)
    return tuple(sorted(images, key=lambda planned: planned.image_name.torch, reverse=True))


def _image_row(name: str, image: Image, inputs: SiteInputs) -> ImageRow:
    """Return what index.json says of an image that the matrix accepts.

    That is how to get it, what was validated of it, and its packages. `inputs` has all that was
    recorded and published.
    """
    matrix = inputs.sources.matrix
    published = _find_published(name, inputs.published)
    pins = {pin.name: pin.version for pin in image.pins}

    # Its runs count for one digest: what the tag names, or else what was measured last.
    runs = newest_first(run for run in inputs.runs if run.image == name)
    digest = published.digest if published else _last_measured_digest(runs)
    tier_runs: list[TierRun] = []
    for run in runs:
        tier_runs += _tier_runs(run, digest, inputs.claims.get(name, ()))
    validation, validated_on = _validation(tier_runs, matrix.gate)

    if published:
        # People pull this very image, whatever the pins and the lock are today.
        get = f"docker pull {inputs.repository}:{name}"
        own_tags = published.tags
        drift = blocked = ""
    else:
        # People build it. The runs may have measured other versions than today's pins: `drift` says
        # which. `blocked` is the reason why it cannot be built, such as a missing lock.
        drift = records.describe_drift(_measured_packages(runs, digest), pins)
        blocked = inputs.blocked.get(image.lock_name, "")
        get = _build_command(name, image, is_blocked=bool(blocked))
        own_tags = (name,)

    # With a drift, a PASS says nothing about the image that would be built today.
    passed_on = [] if drift else _gpus_passed_on(tier_runs)
    summary = chooser.summarize(image, inputs.sources.facts, blocked, passed_on)
    aliases = [alias for alias, target in matrix.aliases.items() if target == name]
    return ImageRow(
        **summary.model_dump(),
        tags=[*own_tags, *aliases],
        pins=pins,
        warnings=list(image.warnings),
        drift=drift,
        digest=digest,
        bytes=_image_size(runs, digest),
        published=published.reference if published else "",
        transfer=published.bytes if published else 0,
        get=get,
        validation=validation,
        validated_on=validated_on,
        runs=_shown_runs(tier_runs),
        page=f"images/{name}.html",
    )


def _find_published(name: str, published: Sequence[Published]) -> Published | None:
    """Return the registry's tag of an image; None if the image is not published."""
    for tag in published:
        if tag.image == name:
            return tag
    return None


def _last_measured_digest(runs: Sequence[Run]) -> str:
    """Return the digest of the newest run that recorded one; empty if none did."""
    for run in runs:
        if run.digest:
            return run.digest
    return ""


def _measured_packages(runs: Sequence[Run], digest: str) -> Mapping[str, str]:
    """Return package -> version from the newest run of a digest that recorded them."""
    for run in runs:
        if run.digest == digest and run.packages:
            return run.packages
    return {}


def _image_size(runs: Sequence[Run], digest: str) -> int:
    """Return an image's unpacked size in bytes; 0 if no run recorded it.

    It is the size of this digest if a run recorded that, else of the newest build that was
    measured. `runs`: of the image, newest first.
    """
    sizes = [run.size for run in runs if run.size]
    sizes_of_digest = [run.size for run in runs if run.size and run.digest == digest]
    newest_sizes = sizes_of_digest or sizes
    return newest_sizes[0] if newest_sizes else 0


def _gpus_passed_on(tier_runs: Sequence[TierRun]) -> list[str]:
    """Return the GPU models on which the gpu tier of the current digest passed."""
    gpus = []
    for run in deciding_runs(tier_runs):
        if run.tier is Tier.GPU and run.verdict is Status.PASS:
            gpus.append(run.gpus)
    return gpus


def _build_command(name: str, image: Image, *, is_blocked: bool) -> str:
    """Return the command that builds an image.

    `is_blocked`: the image has no usable lock, so the command that locks it comes first.
    """
    build = command("build", name)
    return f"{command('lock', image.lock_name)} && {build}" if is_blocked else build


def _tier_runs(run: Run, digest: str, claims: Sequence[Claim]) -> Iterator[TierRun]:
    """Yield a row of index.json for each tier that was measured in a validation run.

    A tier is a group of checks, such as those that need a GPU. Those are left out if the run had no
    GPU. `digest` is the image's current one; empty if it was never built. `claims` are all
    statements about the image that a run of today would check.
    """
    for tier, tier_count in run.tiers.items():
        if tier in _GPU_TIERS and not run.gpus:
            continue
        # `never_run`: how many of today's required claims the run did not judge.
        if run.claims:
            never_run = len(unjudged_claims((run,), tier, claims))
        else:
            # Nightly runs do not record the names of claims that passed: compare the numbers.
            required = [claim for claim in claims if claim.tier is tier and claim.required]
            judged_count = sum(tier_count.counts.values())
            never_run = max(0, len(required) - judged_count)
        yield TierRun(
            tier=tier,
            gpus=describe_gpus(tier, run.gpus),
            verdict=tier_count.verdict,
            # Verdict -> number of claims.
            counts=tier_count.counts,
            never_run=never_run,
            date=run.date,
            digest=run.digest,
            current=bool(digest) and run.digest == digest,
            source=run.source,
        )


def unjudged_claims(runs: Sequence[Run], tier: Tier, claims: Sequence[Claim]) -> list[str]:
    """Return the names (`CHECK/SUBJECT`) of required claims that none of these runs judged.

    `claims` are all claims of an image, and `runs` are recorded validation runs of it. Only claims
    of this tier (`static`, `cpu`, `gpu` or `multigpu`) are looked at. A claim was judged whatever
    its verdict was.
    """
    judged: set[str] = set()
    for run in runs:
        judged.update(claim.key for claim in run.claims)
    required = [claim for claim in claims if claim.tier is tier and claim.required]
    return [claim.key for claim in required if claim.key not in judged]


def describe_gpus(tier: Tier, names: Sequence[str]) -> str:
    """Return the GPUs of a tier's run: `H100` for tier gpu, `2 x H200` for tier multigpu.

    A tier is a group of claims. Empty for tiers that need no GPU. `names`: as the driver has them
    (`NVIDIA H100 80GB HBM3`), one for each GPU.
    """
    if tier not in _GPU_TIERS:
        return ""
    models = Counter(chooser.model_of(name) for name in names)
    # The gpu tier runs on each GPU by itself, so their number does not matter.
    if tier is Tier.GPU:
        return ", ".join(sorted(models))
    return ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))


def _validation(
    tier_runs: Sequence[TierRun], gate: Sequence[Tier]
) -> tuple[Validation, date | None]:
    """Return whether an image is validated, and since when.

    It is FAILED, VALIDATED, PARTLY or NEVER. The day is that of its oldest tier of the gate; None
    if the image is not validated, or if the runs of a tier have no date. `tier_runs`: of the image,
    newest first. `gate`: the tiers (groups of claims) that must pass.
    """
    # The newest run of each tier and GPU model, of the image as it is now.
    current_runs = deciding_runs(tier_runs)
    if any(run.verdict is Status.FAIL for run in current_runs):
        return Validation.FAILED, None

    # Every tier of the gate must have passed with all claims of today (`standing`).
    passed_tiers = {run.tier for run in current_runs if run.standing is Status.PASS}
    if gate and passed_tiers >= set(gate):
        days = []
        for tier in gate:
            days_of_tier = [run.date for run in current_runs if run.tier is tier and run.date]
            if not days_of_tier:
                return Validation.VALIDATED, None
            # A tier may have runs on several GPUs: the newest one counts.
            days.append(max(days_of_tier))
        return Validation.VALIDATED, min(days)

    any_passed = any(run.verdict is Status.PASS for run in current_runs)
    return (Validation.PARTLY if any_passed else Validation.NEVER), None


def _shown_runs(tier_runs: Sequence[TierRun]) -> list[TierRun]:
    """Return the runs that an image's page shows, in their order: newest first.

    They are the newest ones (_SHOWN_RUNS) of each tier and GPU model, and those that decide whether
    the image is validated, however old they are. `tier_runs`: of the image, newest first.
    """
    decisive = deciding_runs(tier_runs)
    shown = []
    counts: Counter[tuple[Tier, str]] = Counter()
    for run in tier_runs:
        counts[run.tier, run.gpus] += 1
        if counts[run.tier, run.gpus] <= _SHOWN_RUNS or run in decisive:
            shown.append(run)
    return shown


def _refused_rows(planned_images: Sequence[Planned], sources: Sources) -> Iterator[RefusedRow]:
    """Yield what index.json says of each image of matrix.yaml that the plan refuses.

    That is why, and which accepted images differ least. Images outside the matrix are left out:
    nobody asked for them. `planned_images`: all images, accepted (they have an `image`) or refused.
    """
    names_in_matrix: set[ImageName] = set()
    for row in sources.matrix.images:
        names_in_matrix.update(row.names())
    accepted = [planned for planned in planned_images if planned.image]
    for planned in planned_images:
        if planned.image_name in names_in_matrix and not planned.image:
            yield RefusedRow(
                name=planned.name,
                torch=planned.torch,
                reasons=list(planned.reasons),
                nearest=list(plan.nearest(planned.image_name, accepted)),
            )
