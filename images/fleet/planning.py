"""Which pairs are fresh, due or impossible, and the jobs of the due ones. Pure, and linear in the number of pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache

from images.chooser import models
from images.config.names import Arch
from images.config.platforms import Platform
from images.errors import UserError
from images.fleet.config import Fleet
from images.fleet.model import ON_GPUS, Job, Pair
from images.site.records import RunLine
from validate import compute_capability
from validate.claims import ClaimSet, Tier
from validate.judge import Verdict
from validate.judging import Status

_SHOWN = 3
_KEPT = (Status.PASS, Status.NOT_APPLICABLE)


class State(StrEnum):
    """What a pair needs."""

    FRESH = "fresh"
    """A record of this digest, not older than the limit, says PASS of every required claim of today."""
    DUE = "due"
    BOOKED = "booked"
    """Somebody else judges it now."""
    IMPOSSIBLE = "impossible"
    """No machine of the fleet can judge it."""


@dataclass(frozen=True, kw_only=True)
class FleetImage:
    """An image that is there, and what it is held to."""

    name: str
    digest: str
    archs: tuple[Arch, ...]
    """What its libraries have machine code for."""
    ptx: tuple[Arch, ...]
    claims: ClaimSet
    """Every claim of today; those of the GPU tiers as for a machine with GPUs."""
    platform: Platform = Platform.AMD64
    reference: str = ""
    """`HOST/NAME@sha256:...`; empty until it was pushed."""
    why_not: str = ""
    """Why there is no image to judge; empty: there is one."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """The newest record of a pair."""

    date: datetime
    verdict: Status
    judged: frozenset[str]
    """`ID SUBJECT` of its claims that are PASS or NOT_APPLICABLE."""
    source: str
    unusable: str = ""
    """Why it says nothing: its evidence is damaged. Empty: it can be used."""


@dataclass(frozen=True, kw_only=True)
class PlannedPair:
    """A pair with the plan's answer."""

    pair: Pair
    state: State
    reason: str
    worker: str = ""
    """The machines of fleet.yaml that judge it."""
    gpus: int = 0
    lacks: frozenset[str] = frozenset()
    """`ID SUBJECT` of the required claims that its record, sound and young, leaves open."""


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """What a plan depends on, beside the images."""

    fleet: Fleet
    now: datetime
    known: Mapping[Pair, Known] = field(default_factory=dict)
    tiers: Sequence[Tier] = tuple(Tier)
    booked: Mapping[Pair, str] = field(default_factory=dict)
    """Pair -> who judges it now."""


def plan(images: Sequence[FleetImage], given: PlanInputs) -> tuple[PlannedPair, ...]:
    """Every pair of these images, in their order. An image's gpu tier is judged once on each architecture there is."""
    return tuple(pair for image in images for pair in _of_image(image, given))


def _of_image(image: FleetImage, given: PlanInputs) -> Iterator[PlannedPair]:
    required = {tier: _required(image.claims, tier) for tier in given.tiers}
    there = {claim.tier for claim in image.claims.claims}
    fleet = given.fleet.of(image.platform)
    for tier in (tier for tier in Tier if tier in given.tiers and tier in there):
        if tier not in ON_GPUS:
            pair = Pair(image=image.name, digest=image.digest, tier=tier)
            yield _answered(image, _on_plain(pair, image, fleet), required, given)
            continue
        for candidate in _on_gpus(image, tier, fleet):
            yield _answered(image, candidate, required, given)


def _required(claims: ClaimSet, tier: Tier) -> frozenset[str]:
    return frozenset(f"{one.id} {one.subject}" for one in claims.claims if one.tier is tier and one.required)


def _on_plain(pair: Pair, image: FleetImage, fleet: Fleet) -> PlannedPair:
    if not fleet.workers:
        return PlannedPair(pair=pair, state=State.IMPOSSIBLE, reason=f"no machine of the fleet is {image.platform}")
    return PlannedPair(pair=pair, state=State.DUE, reason="", worker=fleet.plain)


def _on_gpus(image: FleetImage, tier: Tier, fleet: Fleet) -> Iterator[PlannedPair]:
    """A pair for each architecture of the fleet, and one for each that the image has code for and the fleet lacks."""
    machines = fleet.by_arch
    cubins, ptx = [one.pair for one in image.archs], [one.pair for one in image.ptx]
    for capability in sorted({*machines, *(one.capability for one in image.archs)}, key=Arch.parse):
        pair = Pair(image=image.name, digest=image.digest, tier=tier, arch=capability)
        arch = Arch.parse(capability)
        if capability not in machines:
            other = f" on {image.platform}" if image.platform is not Platform.AMD64 else ""
            reason = f"no machine of the fleet has {arch}{other}"
            yield PlannedPair(pair=pair, state=State.IMPOSSIBLE, reason=reason)
            continue
        name, machine = machines[capability]
        wanted = machine.ranks if tier is Tier.MULTIGPU else 1
        if compute_capability.fit(cubins, ptx, arch.pair) != "cubin":
            reason = f"the image has no machine code for {arch}"
            yield PlannedPair(pair=pair, state=State.IMPOSSIBLE, reason=reason)
        elif machine.gpus < wanted:
            reason = f"{name} has {machine.gpus} GPU, {wanted} are needed"
            yield PlannedPair(pair=pair, state=State.IMPOSSIBLE, reason=reason)
        else:
            yield PlannedPair(pair=pair, state=State.DUE, reason="", worker=name, gpus=wanted)


def _answered(
    image: FleetImage, one: PlannedPair, required: Mapping[Tier, frozenset[str]], given: PlanInputs
) -> PlannedPair:
    """The same with what records and bookings say of it."""
    if image.why_not:
        return PlannedPair(pair=one.pair, state=State.IMPOSSIBLE, reason=image.why_not)
    if one.state is State.IMPOSSIBLE:
        return one
    known, lacks = given.known.get(one.pair), frozenset[str]()
    due = _why_unusable(known, given)
    if known and not due:
        lacks = required[one.pair.tier] - known.judged
        due = _why_incomplete(known, lacks)
    if known and not due:
        reason = f"{known.verdict} on {known.date:%Y-%m-%d} ({known.source})"
        return PlannedPair(pair=one.pair, state=State.FRESH, reason=reason, worker=one.worker, gpus=one.gpus)
    if owner := given.booked.get(one.pair):
        return PlannedPair(pair=one.pair, state=State.BOOKED, reason=owner, worker=one.worker, gpus=one.gpus)
    return replace(one, state=State.DUE, reason=due, lacks=lacks)


def _why_unusable(known: Known | None, given: PlanInputs) -> str:
    """Why no record answers for any claim; empty: there is one, which does for the claims that it judged."""
    if known is None:
        return "never judged"
    if known.unusable:
        return f"its record of {known.date:%Y-%m-%d} can't be used: {known.unusable}"
    if known.date < given.now - timedelta(days=given.fleet.max_age_days):
        return f"judged on {known.date:%Y-%m-%d}, more than {given.fleet.max_age_days} days ago"
    if known.verdict is Status.FAIL:
        return f"was {known.verdict} on {known.date:%Y-%m-%d}"
    return ""


def _why_incomplete(known: Known, lacks: frozenset[str]) -> str:
    """Empty: the record answers for every claim."""
    if lacks:
        more = f" and {len(lacks) - _SHOWN} more" if len(lacks) > _SHOWN else ""
        return f"its record of {known.date:%Y-%m-%d} lacks {', '.join(sorted(lacks)[:_SHOWN])}{more}"
    if known.verdict is not Status.PASS:
        return f"was {known.verdict} on {known.date:%Y-%m-%d}"
    return ""


def newest(records: Iterable[tuple[Pair, Known]]) -> dict[Pair, Known]:
    """The newest record of each pair."""
    found: dict[Pair, Known] = {}
    for pair, known in records:
        if pair not in found or found[pair].date < known.date:
            found[pair] = known
    return found


def of_line(line: RunLine, source: str) -> Iterator[tuple[Pair, Known]]:
    """What a line of runs.jsonl says of each of its pairs; nothing, if it is an experiment or undated."""
    if line.experiment or line.date is None:
        return
    for tier in line.tiers:
        pair = _pair_of(line, tier)
        if pair is None:
            continue
        kept = frozenset(key for status in _KEPT for key in line.claims.get(tier, {}).get(status, ()))
        verdict = line.tiers[tier].verdict
        yield pair, Known(date=line.date.astimezone(UTC), verdict=verdict, judged=kept, source=source)


def of_verdict(job: Job, verdict: Verdict, date: datetime, source: str) -> Iterator[tuple[Pair, Known]]:
    """What a verdict on a job's evidence says of each of its pairs."""
    for pair in job.pairs:
        own = replace(verdict, claims=tuple(one for one in verdict.claims if one.claim.tier is pair.tier))
        kept = frozenset(f"{one.claim.id} {one.claim.subject}" for one in own.claims if one.status in _KEPT)
        yield pair, Known(date=date, verdict=own.overall, judged=kept, source=source)


def of_unusable(job: Job, cause: str, date: datetime, source: str) -> Iterator[tuple[Pair, Known]]:
    """The pairs of a record whose evidence is no evidence."""
    for pair in job.pairs:
        yield (
            pair,
            Known(date=date, verdict=Status.UNPROVEN, judged=frozenset(), source=source, unusable=cause),
        )


def _pair_of(line: RunLine, tier: Tier) -> Pair | None:
    """None: a GPU tier that ran without a GPU, or on one that nobody knows."""
    if tier not in ON_GPUS:
        return Pair(image=line.image, digest=line.digest, tier=tier)
    capability = _capability(line.gpus[0]) if line.gpus else ""
    return Pair(image=line.image, digest=line.digest, tier=tier, arch=capability) if capability else None


@cache
def _capability(gpu: str) -> str:
    try:
        return models.find(gpu)[1].capability
    except UserError:
        return ""


def jobs(
    planned: Iterable[PlannedPair], images: Iterable[FleetImage], only: Sequence[str] = ()
) -> dict[str, list[Job]]:
    """Machines -> the jobs of the due pairs. The static and the cpu tier of an image are one job."""
    by_digest = {(one.name, one.digest): one for one in images}
    together: dict[tuple[str, str, str, str], list[PlannedPair]] = {}
    for one in planned:
        if one.state is State.DUE:
            own = f"{one.pair.tier} {one.pair.arch}" if one.pair.tier in ON_GPUS else ""
            together.setdefault((one.worker, one.pair.image, one.pair.digest, own), []).append(one)
    found: dict[str, list[Job]] = {}
    for (worker, name, digest, _), pairs in together.items():
        found.setdefault(worker, []).append(_job(by_digest[name, digest], pairs, only))
    return found


def _job(image: FleetImage, pairs: Sequence[PlannedPair], only: Sequence[str]) -> Job:
    tiers = tuple(one.pair.tier for one in pairs)
    own = [tier for tier in tiers if tier not in ON_GPUS]
    return Job(
        image=image.name,
        digest=image.digest,
        reference=image.reference,
        tiers=tiers,
        arch=pairs[0].pair.arch,
        gpus=pairs[0].gpus,
        platform=image.platform,
        required=tuple(sorted(key for tier in tiers if tier in ON_GPUS for key in _required(image.claims, tier))),
        only=tuple(only),
        claims=_plain(image.claims.of(own)),
    )


def unanswered(planned: Iterable[PlannedPair], answered: Iterable[Job]) -> tuple[PlannedPair, ...]:
    """The pairs that are neither fresh nor among those of jobs that were judged or lost.

    A GPU tier is asked for on the architectures that the fleet has: where it was answered on one, the others that no
    machine can judge are not missing.
    """
    there = {pair for job in answered for pair in job.pairs}
    pairs = list(planned)
    left = [one for one in pairs if one.state is not State.FRESH and one.pair not in there]
    somewhere = {_tier_of(one.pair) for one in pairs if one.state is State.FRESH or one.pair in there}
    return tuple(one for one in left if one.state is not State.IMPOSSIBLE or _tier_of(one.pair) not in somewhere)


def _tier_of(pair: Pair) -> tuple[str, str, Tier]:
    return pair.image, pair.digest, pair.tier


def _plain(claims: ClaimSet) -> dict[str, object]:
    return dict(json.loads(json.dumps({"image": claims.image, "claims": [vars(one) for one in claims.claims]})))
