"""Which matrix cells are fresh, due or impossible, and the jobs of the due ones. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from images.building.validating import ANYWHERE
from images.config.names import Arch
from images.config.platforms import Platform
from images.engine import ImageInfo
from images.fleet.config import Fleet
from images.fleet.model import ON_GPUS, Job, MatrixCell
from validate import compute_capability
from validate.claims import ClaimSet, Tier
from validate.judge import Verdict
from validate.judging import Status, listed

_KEPT = (Status.PASS, Status.NOT_APPLICABLE)


class State(StrEnum):
    """What a cell needs."""

    FRESH = "fresh"
    """A record of this digest, not older than the limit, says PASS of every required claim of today."""
    DUE = "due"
    LEASED = "leased"
    """Somebody else judges it now."""
    IMPOSSIBLE = "impossible"
    """No machine of the fleet can judge it."""


@dataclass(frozen=True, kw_only=True)
class FleetImage:
    """An image that is there, or can be built, and what it is held to."""

    name: str
    digest: str
    """`sha256:...` of the configuration; of an image to be built, its context digest."""
    archs: tuple[Arch, ...]
    """What its libraries have machine code for."""
    ptx: tuple[Arch, ...]
    claims: ClaimSet
    """Every claim of today; those of the GPU tiers as for a machine with GPUs."""
    described: Mapping[str, Any] = field(default_factory=dict)
    """Its labels and history."""
    platform: Platform = Platform.AMD64
    reference: str = ""
    """`HOST/NAME@sha256:...`; empty until it was pushed."""
    local: ImageInfo | None = None
    """This machine's engine has it, and the registry is yet to get it."""
    staging: str = ""
    """`HOST/NAME` that has no image of this context: a worker builds one and pushes it there. Empty: it is there."""
    why_not: str = ""
    """Why there is no image to validate; empty: there is one, or it can be built."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """The newest record of a cell."""

    date: datetime
    verdict: Status
    judged: frozenset[str] = frozenset()
    """`ID SUBJECT` of its claims that are PASS or NOT_APPLICABLE."""
    source: str
    unusable: str = ""
    """Why it says nothing: its evidence is damaged. Empty: it can be used."""


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """A cell with the plan's answer."""

    cell: MatrixCell
    state: State
    reason: str
    worker: str = ""
    """The machines of fleet.yaml that judge it."""
    gpus: int = 0


def plan(
    images: Sequence[FleetImage],
    fleet: Fleet,
    now: datetime,
    *,
    tiers: Sequence[Tier] = tuple(Tier),
    known: Mapping[MatrixCell, Known] | None = None,
    leased: Mapping[MatrixCell, str] | None = None,
) -> tuple[PlannedCell, ...]:
    """Every cell of these images, in their order. An image's gpu tier is judged once on each architecture there is.

    `leased`: cell -> who does it now.
    """
    found: list[PlannedCell] = []
    for image in images:
        machines = fleet.of(image.platform)
        there = {claim.tier for claim in image.claims.claims}
        for tier in (tier for tier in Tier if tier in tiers and tier in there):
            plain = MatrixCell(image=image.name, digest=image.digest, tier=tier)
            if tier in ON_GPUS:
                possible = list(_on_gpus(image, tier, machines))
            elif machines.workers:
                possible = [PlannedCell(cell=plain, state=State.DUE, reason="", worker=machines.plain)]
            else:
                possible = [_impossible(plain, f"no machine of the fleet is {image.platform}")]
            for one in possible:
                last, who = (known or {}).get(one.cell), (leased or {}).get(one.cell, "")
                if image.why_not:
                    one = _impossible(one.cell, image.why_not)
                elif one.state is not State.IMPOSSIBLE:
                    one = _answered(one, image, last, who, now, fleet.max_age_days)
                found.append(one)
    return tuple(found)


def _impossible(cell: MatrixCell, reason: str) -> PlannedCell:
    return PlannedCell(cell=cell, state=State.IMPOSSIBLE, reason=reason)


def _on_gpus(image: FleetImage, tier: Tier, fleet: Fleet) -> Iterator[PlannedCell]:
    """A cell for each architecture of the fleet, and one for each that the image has code for and the fleet lacks."""
    machines = fleet.by_arch
    for capability in sorted({*machines, *(one.capability for one in image.archs)}, key=Arch.parse):
        cell = MatrixCell(image=image.name, digest=image.digest, tier=tier, arch=capability)
        arch = Arch.parse(capability)
        if capability not in machines:
            other = f" on {image.platform}" if image.platform is not Platform.AMD64 else ""
            yield _impossible(cell, f"no machine of the fleet has {arch}{other}")
            continue
        name, machine = machines[capability]
        wanted = machine.ranks if tier is Tier.MULTIGPU else 1
        if compute_capability.fit(image.archs, image.ptx, arch) != "cubin":
            yield _impossible(cell, f"the image has no machine code for {arch}")
        elif machine.gpus < wanted:
            yield _impossible(cell, f"{name} has {machine.gpus} GPU, {wanted} are needed")
        else:
            yield PlannedCell(cell=cell, state=State.DUE, reason="", worker=name, gpus=wanted)


def _answered(
    one: PlannedCell, image: FleetImage, known: Known | None, who: str, now: datetime, max_age: int
) -> PlannedCell:
    """The same with what its newest record and its lease say. A record older than `max_age` days says nothing."""
    tier, claims = one.cell.tier, image.claims.claims
    required = {claim.key for claim in claims if claim.tier is tier and claim.required}
    if image.staging:
        due = f"is built first: {image.staging} has no image of this context"
    elif known is None:
        due = "never judged"
    elif known.unusable:
        due = f"its record of {known.date:%Y-%m-%d} can't be used: {known.unusable}"
    elif known.date < now - timedelta(days=max_age):
        due = f"judged on {known.date:%Y-%m-%d}, more than {max_age} days ago"
    elif known.verdict is not Status.FAIL and (lacks := sorted(required - known.judged)):
        due = f"its record of {known.date:%Y-%m-%d} lacks {listed(lacks)}"
    elif known.verdict is not Status.PASS:
        due = f"was {known.verdict} on {known.date:%Y-%m-%d}"
    else:
        told = f"{known.verdict} on {known.date:%Y-%m-%d} ({known.source})"
        return replace(one, state=State.FRESH, reason=told)
    return replace(one, state=State.LEASED, reason=who) if who else replace(one, state=State.DUE, reason=due)


def of_verdict(job: Job, verdict: Verdict, date: datetime, source: str) -> dict[MatrixCell, Known]:
    """What a verdict on a job's evidence says of each of its cells."""
    found = {}
    for cell in job.cells:
        own = replace(verdict, claims=tuple(one for one in verdict.claims if one.claim.tier is cell.tier))
        kept = frozenset(one.claim.key for one in own.claims if one.status in _KEPT)
        found[cell] = Known(date=date, verdict=own.overall, judged=kept, source=source)
    return found


def jobs(
    planned: Iterable[PlannedCell], images: Iterable[FleetImage], fleet: Fleet, only: Sequence[str] = ()
) -> dict[str, list[Job]]:
    """Machines -> the jobs of the due cells. The static and the cpu tier of an image are one job.

    An image that is not there yet is one job, which builds it and validates these two; its GPU tiers are due again
    once it is there.
    """
    by_digest = {(one.name, one.digest): one for one in images}
    together: dict[tuple[str, str, str, str], list[PlannedCell]] = {}
    found: dict[str, list[Job]] = {}
    for one in (one for one in planned if one.state is State.DUE):
        image = by_digest[one.cell.image, one.cell.digest]
        if not image.staging:
            own = f"{one.cell.tier} {one.cell.arch}" if one.cell.tier in ON_GPUS else ""
            together.setdefault((one.worker, one.cell.image, one.cell.digest, own), []).append(one)
            continue
        job = Job(
            image=image.name, context=image.digest, platform=image.platform, tiers=ANYWHERE, staging=image.staging
        )
        others = found.setdefault(fleet.of(image.platform).plain, [])
        others += [job] if job not in others else []
    for (worker, name, digest, _), cells in together.items():
        image, tiers = by_digest[name, digest], tuple(one.cell.tier for one in cells)
        job = Job(
            image=name,
            digest=digest,
            reference=image.reference,
            tiers=tiers,
            arch=cells[0].cell.arch,
            gpus=cells[0].gpus,
            platform=image.platform,
            described=dict(image.described) if set(tiers) & set(ON_GPUS) else {},
            only=tuple(only),
            claims=json.loads(image.claims.of([tier for tier in tiers if tier not in ON_GPUS]).dumps()),
        )
        found.setdefault(worker, []).append(job)
    return found


def unanswered(planned: Sequence[PlannedCell], answered: Iterable[Job]) -> tuple[PlannedCell, ...]:
    """The cells that are neither fresh nor among those of jobs that were judged or lost.

    A GPU tier is asked for on the architectures that the fleet has: where it was answered on one, the others that no
    machine can judge are not missing.
    """
    there = {cell for job in answered for cell in job.cells}
    done = [one for one in planned if one.state is State.FRESH or one.cell in there]
    elsewhere = {replace(one.cell, arch="") for one in done}
    missing = [one for one in planned if one not in done]
    return tuple(
        one for one in missing if one.state is not State.IMPOSSIBLE or replace(one.cell, arch="") not in elsewhere
    )
