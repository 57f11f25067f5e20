"""What a site is made from, and the index that follows from it. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from images.config import selectors
from images.config.matrix import Sources
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
    deciding,
)
from images.site.runs import Published, Run, newest_first
from validate.claims import Claim, Tier
from validate.judging import Status

_RUNS_OF_A_COLUMN = 10
"""Runs shown of an image, a tier and GPU: results/ has all of them, and pages stay small."""
_ON_GPUS = (Tier.GPU, Tier.MULTIGPU)


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
    """Image -> what the matrix claims of it today; one that is not here is shown by its runs alone."""


def make_index(inputs: SiteInputs) -> Index:
    """Return the content of index.json."""
    everything = planned(inputs)
    accepted = [row for row in everything if row.image]
    return Index(
        date=inputs.today,
        revision=inputs.sources.revision,
        stale_after_days=STALE_AFTER_DAYS,
        gate=list(inputs.sources.matrix.gate),
        repository=inputs.repository,
        images=[_image_row(row.name, row.image, inputs) for row in accepted if row.image],
        refused=list(_refused(everything, accepted, inputs.sources)),
    )


def planned(inputs: SiteInputs) -> tuple[Planned, ...]:
    """Return the plan, and images outside it that were validated (an arch image, say); newest torch first."""
    of_matrix = plan.plan(inputs.sources)
    names = {row.name for row in of_matrix}
    outside = []
    for text in sorted({run.image for run in inputs.runs} - names):
        name = selectors.image_name(text)
        if name:
            outside.append(plan.plan_one(name, inputs.sources))
    return tuple(sorted((*of_matrix, *outside), key=lambda row: row.image_name.torch, reverse=True))


def _image_row(name: str, image: Image, inputs: SiteInputs) -> ImageRow:
    matrix = inputs.sources.matrix
    runs = newest_first(run for run in inputs.runs if run.image == name)

    # Verdicts count for one digest: what the tag means, else what was measured last.
    tag = next((published for published in inputs.published if published.image == name), None)
    measured = next((run.digest for run in runs if run.digest), "")
    digest = tag.digest if tag else measured
    tier_runs: list[TierRun] = []
    for run in runs:
        tier_runs += _tier_runs(run, digest, inputs.claims.get(name, ()))
    validation, validated_on = _validation(tier_runs, matrix.gate)

    # What its runs measured may differ from today's pins; then a pass says nothing about today's image.
    pins = {pin.name: pin.version for pin in image.pins}
    packages = next((run.packages for run in runs if run.digest == digest and run.packages), {})
    drift = "" if tag else records.drift(packages, pins)
    passed_on = []
    if not drift:
        passed_on = [
            run.gpus
            for run in deciding(tier_runs)
            if run.tier is Tier.GPU and run.verdict is Status.PASS
        ]

    blocked = "" if tag else inputs.blocked.get(image.lock_name, "")
    summary = chooser.summary(image, inputs.sources.facts, blocked, passed_on)
    aliases = [alias for alias, meant in matrix.aliases.items() if meant == name]
    sizes = [run.size for run in sorted(runs, key=lambda run: run.digest != digest) if run.size]
    return ImageRow(
        **summary.model_dump(),
        tags=[*(tag.tags if tag else (name,)), *aliases],
        pins=pins,
        warnings=list(image.warnings),
        drift=drift,
        digest=digest,
        bytes=sizes[0] if sizes else 0,
        published=tag.reference if tag else "",
        transfer=tag.bytes if tag else 0,
        get=f"docker pull {inputs.repository}:{name}"
        if tag
        else _build_command(name, image, blocked),
        validation=validation,
        validated_on=validated_on,
        runs=_shown(tier_runs),
        page=f"images/{name}.html",
    )


def _build_command(name: str, image: Image, blocked: str) -> str:
    build = command("build", name)
    return f"{command('lock', image.lock_name)} && {build}" if blocked else build


def _tier_runs(run: Run, digest: str, claims: Sequence[Claim]) -> Iterator[TierRun]:
    """Yield the tiers of a run. A GPU tier without a GPU is no run of it."""
    for tier, count in run.tiers.items():
        if tier in _ON_GPUS and not run.gpus:
            continue
        if run.claims:
            never_run = len(unjudged((run,), tier, claims))
        else:
            # Nightly runs record no names of claims that passed: compare the numbers.
            required = sum(claim.tier is tier and claim.required for claim in claims)
            never_run = max(0, required - sum(count.counts.values()))
        yield TierRun(
            tier=tier,
            gpus=gpus_of(tier, run.gpus),
            verdict=count.verdict,
            counts=count.counts,
            never_run=never_run,
            date=run.date,
            digest=run.digest,
            current=bool(digest) and run.digest == digest,
            source=run.source,
        )


def unjudged(runs: Sequence[Run], tier: Tier, claims: Sequence[Claim]) -> list[str]:
    """Return `CHECK/SUBJECT` of the required claims of a tier that none of these runs judged."""
    judged = set()
    for run in runs:
        judged |= {row.key for row in run.claims}
    required = [claim for claim in claims if claim.tier is tier and claim.required]
    return [claim.key for claim in required if claim.key not in judged]


def gpus_of(tier: Tier, names: Sequence[str]) -> str:
    """Return `H100` for one GPU's tier, `2 x H200` for several GPUs' together; empty for tiers without."""
    if tier not in _ON_GPUS:
        return ""
    models = [chooser.model_of(name) for name in names]
    distinct = sorted(set(models))
    if tier is Tier.GPU:
        return ", ".join(distinct)
    return ", ".join(f"{models.count(model)} x {model}" for model in distinct)


def _validation(
    tier_runs: Sequence[TierRun], gate: Sequence[Tier]
) -> tuple[Validation, date | None]:
    """Return whether an image is validated, and the day of its oldest tier of the gate if each has one."""
    current = deciding(tier_runs)
    if any(run.verdict is Status.FAIL for run in current):
        return Validation.FAILED, None

    passed = {run.tier for run in current if run.standing is Status.PASS}
    if gate and passed >= set(gate):
        days = []
        for tier in gate:
            dated = [run.date for run in current if run.tier is tier and run.date]
            if not dated:
                return Validation.VALIDATED, None
            days.append(max(dated))
        return Validation.VALIDATED, min(days)

    any_passed = any(run.verdict is Status.PASS for run in current)
    return (Validation.PARTLY if any_passed else Validation.NEVER), None


def _shown(tier_runs: Sequence[TierRun]) -> list[TierRun]:
    """Return the newest runs of each tier and GPU, and those that decide, however old they are."""
    decisive = deciding(tier_runs)
    shown = []
    seen: Counter[tuple[Tier, str]] = Counter()
    for run in tier_runs:
        seen[run.tier, run.gpus] += 1
        if seen[run.tier, run.gpus] <= _RUNS_OF_A_COLUMN or run in decisive:
            shown.append(run)
    return shown


def _refused(
    everything: Sequence[Planned], accepted: Sequence[Planned], sources: Sources
) -> Iterator[RefusedRow]:
    """Yield the rows of matrix.yaml that the plan refuses."""
    in_matrix = {row.name for row in sources.matrix.images}
    for row in everything:
        if row.name in in_matrix and not row.image:
            nearest = list(plan.nearest(row.image_name, accepted))
            yield RefusedRow(
                name=row.name, torch=row.torch, reasons=list(row.reasons), nearest=nearest
            )
