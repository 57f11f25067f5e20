"""Makes the site's index from the plan and from everything that was validated. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from images.config import selectors
from images.config.matrix import Sources
from images.config.names import ImageName, Minor
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

_KEPT_RUNS = 10
"""Of an image, a tier and GPU. results/ has all of them; pages stay small."""
_ON_GPUS = (Tier.GPU, Tier.MULTIGPU)


@dataclass(frozen=True, kw_only=True)
class SiteInputs:
    """Everything a site is made from, read beforehand."""

    sources: Sources
    today: date
    runs: Sequence[Run] = ()
    nightly: Sequence[JobLine | BreakageLine] = ()
    repository: str = ""
    published: Sequence[Published] = ()
    closures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Lock -> distribution -> version."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """Lock -> why no image of it can be built, with the next command; the others can."""
    claims: Mapping[str, Sequence[Claim]] = field(default_factory=dict)
    """Image -> what the matrix claims of it today; one that is not here is shown by its runs alone."""


def make(known: SiteInputs) -> Index:
    """The index of these inputs."""
    everything = planned(known)
    accepted = [one for one in everything if one.accepted]
    return Index(
        date=known.today,
        revision=known.sources.revision,
        stale_after_days=STALE_AFTER_DAYS,
        gate=list(known.sources.matrix.gate),
        repository=known.repository,
        images=[_image(one.name, one.image, known) for one in accepted if one.image],
        refused=list(_refused(everything, accepted, known.sources)),
    )


def planned(known: SiteInputs) -> tuple[Planned, ...]:
    """The plan, and images outside it that were validated (an arch image, say); newest torch first."""
    listed = plan.plan(known.sources)
    names = {one.name for one in listed}
    others = sorted({run.image for run in known.runs} - names)
    found = [plan.plan_one(name, known.sources) for text in others if (name := selectors.image_name(text))]
    return tuple(sorted((*listed, *found), key=lambda one: one.image_name.torch, reverse=True))


def _image(name: str, image: Image, known: SiteInputs) -> ImageRow:
    tag = next((one for one in known.published if one.image == name), None)
    runs = newest_first(one for one in known.runs if one.image == name)
    digest = tag.digest if tag else next((one.digest for one in runs if one.digest), "")
    tier_runs = [row for run in runs for row in _tier_runs(run, digest, known.claims.get(name, ()))]
    validation, validated_on = _validation(tier_runs, known.sources.matrix.gate)
    blocked = "" if tag else known.blocked.get(image.lock_name, "")
    build = command("build", name)
    build = f"{command('lock', image.lock_name)} && {build}" if blocked else build
    on_gpus = {row.gpus: row.verdict for row in reversed(tier_runs) if row.tier is Tier.GPU and row.current}
    pins = {pin.name: pin.version for pin in image.pins}
    own = next((one.packages for one in runs if one.digest == digest and one.packages), {})
    drift = "" if tag else records.drift(own, pins)
    passed_on = [gpu for gpu, verdict in on_gpus.items() if verdict is Status.PASS and not drift]
    summary = chooser.summary(image, known.sources.facts, blocked, passed_on)
    aliases = [alias for alias, meant in known.sources.matrix.aliases.items() if meant == name]
    return ImageRow(
        **summary.model_dump(),
        tags=[*(tag.tags if tag else (name,)), *aliases],
        pins=pins,
        warnings=list(image.warnings),
        drift=drift,
        digest=digest,
        bytes=next((run.size for run in sorted(runs, key=lambda run: run.digest != digest) if run.size), 0),
        published=tag.reference if tag else "",
        transfer=tag.bytes if tag else 0,
        get=f"docker pull {known.repository}:{name}" if tag else build,
        validation=validation,
        validated_on=validated_on,
        runs=_kept(tier_runs),
        page=f"images/{name}.html",
        badge=f"badges/{name}.svg",
    )


def _tier_runs(run: Run, digest: str, claims: Sequence[Claim]) -> Iterator[TierRun]:
    """The tiers of a run. A GPU tier without a GPU is no run of it."""
    for tier, count in run.tiers.items():
        if tier in _ON_GPUS and not run.gpus:
            continue
        required = sum(claim.tier is tier and claim.required for claim in claims)
        by_number = max(0, required - sum(count.counts.values()))  # of nightly runs, which record no names
        yield TierRun(
            tier=tier,
            gpus=gpus_of(tier, run.gpus),
            verdict=count.verdict,
            counts=count.counts,
            never_run=len(unjudged((run,), tier, claims)) if run.claims else by_number,
            date=run.date,
            digest=run.digest,
            current=bool(digest) and run.digest == digest,
            source=run.source,
            page=page_of(run) if run.claims else "",
        )


def unjudged(runs: Sequence[Run], tier: Tier, claims: Sequence[Claim]) -> list[str]:
    """`ID SUBJECT` of the required claims of a tier that none of these runs judged."""
    judged = {(one.id, one.subject) for run in runs for one in run.claims}
    return [
        f"{claim.id} {claim.subject}"
        for claim in claims
        if claim.tier is tier and claim.required and (claim.id, claim.subject) not in judged
    ]


def page_of(run: Run) -> str:
    """Path of the page of one run: its name, then where it was found."""
    where = run.source.rpartition("/")[2].replace("@", "-").replace(":", "-").replace(" ", "-")
    plain = "".join(char for char in where if char.isalnum() or char in "-_.")
    return f"runs/{run.image}/{plain}.html"


def gpus_of(tier: Tier, names: Sequence[str]) -> str:
    """`H100` for one GPU's tier, `2 x H200` for several GPUs' together; empty for tiers without."""
    if tier not in _ON_GPUS:
        return ""
    models = [chooser.model_of(name) for name in names]
    distinct = sorted(set(models))
    if tier is Tier.GPU:
        return ", ".join(distinct)
    return ", ".join(f"{models.count(model)} x {model}" for model in distinct)


def _validation(tier_runs: Sequence[TierRun], gate: Sequence[Tier]) -> tuple[Validation, date | None]:
    """And of a validated image the day of its oldest tier of the gate, where each has one."""
    current = deciding(tier_runs)
    if any(one.verdict is Status.FAIL for one in current):
        return Validation.FAILED, None
    passed = {one.tier for one in current if one.standing is Status.PASS}
    if gate and passed >= set(gate):
        days = [max((one.date for one in current if one.tier is tier and one.date), default=None) for tier in gate]
        known = [day for day in days if day]
        return Validation.VALIDATED, min(known) if len(known) == len(days) else None
    return Validation.PARTLY if any(one.verdict is Status.PASS for one in current) else Validation.NEVER, None


def _kept(tier_runs: Sequence[TierRun]) -> list[TierRun]:
    found = deciding(tier_runs)
    seen: Counter[tuple[Tier, str]] = Counter()
    for one in tier_runs:
        seen[one.tier, one.gpus] += 1
        if seen[one.tier, one.gpus] <= _KEPT_RUNS and one not in found:
            found.append(one)
    return [one for one in tier_runs if one in found]


def _refused(everything: Sequence[Planned], accepted: Sequence[Planned], sources: Sources) -> Iterator[RefusedRow]:
    """What the matrix lists and the plan refuses, then every other CUDA with every other torch."""
    listed = {row.name for row in sources.matrix.images}
    refused = {one.name: one for one in (*everything, *combinations(sources)) if not one.accepted}
    for name, one in refused.items():
        yield RefusedRow(
            name=name,
            torch=one.torch,
            reasons=list(one.reasons),
            listed=name in listed,
            nearest=list(plan.nearest(one.image_name, accepted)),
        )


def combinations(sources: Sources) -> tuple[Planned, ...]:
    """Every CUDA toolkit of the matrix with every torch of the facts, planned."""
    cudas = sorted(map(Minor.parse, sources.matrix.toolkits))
    torches = sorted({Minor.parse(text) for text in sources.facts.torch}, reverse=True)
    return tuple(plan.plan_one(ImageName(cuda=cuda, torch=torch), sources) for torch in torches for cuda in cudas)
