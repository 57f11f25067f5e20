"""The images of a plan: where each is found, what it is held to, and what is known of it already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path

from images.building import validating
from images.building.validating import Described
from images.config.matrix import Sources
from images.config.platforms import Platform
from images.engine import Engine
from images.errors import Problem, UserError
from images.fleet import planning, travel
from images.fleet.judging import judged
from images.fleet.ledger import Ledger
from images.fleet.model import FleetRecord, Pair
from images.fleet.planning import FleetImage, Known
from images.fleet.travel import Found
from images.planning.image import Image
from images.registry.reference import Reference, Repository
from images.site import records
from validate.claims import Tier


@dataclass(frozen=True, kw_only=True)
class RequestedImage:
    """An image that somebody asks for: by the name whose claims it is held to, and where it is if not under that."""

    image: Image
    reference: str = ""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where images are looked for, in this order."""

    engine: Engine | None
    repository: Repository | None


@dataclass(frozen=True, kw_only=True)
class Located:
    """An image of the plan, and where it was found; None: nowhere."""

    planned: FleetImage
    found: Found | None


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What images are held to."""

    sources: Sources
    cache: Path
    tiers: Sequence[Tier]
    only: Sequence[str] = ()


def images(wishes: Sequence[RequestedImage], places: Places, holding: Holding) -> list[Located]:
    """Every wish, located. Raises UserError: no access, a reference that names nothing, unknown claims."""
    return [_located(wish, places, holding) for wish in wishes]


def _located(wish: RequestedImage, places: Places, holding: Holding) -> Located:
    name, platform = str(wish.image.name), wish.image.platform
    if wish.reference:
        found: Found | None = by_reference(wish.reference, f"--image {name}={wish.reference}", places, platform)
    else:
        found = by_name(name, places, platform)
    where = f"; {places.repository} has no tag of this name" if places.repository else ""
    pushed = f"; of a build by a worker, `--image {name}=REFERENCE` (OUT/{name}/pushed.json)"
    why_not = "" if found else f"it is in no engine here{where}: `nox -s build -- {wish.image.name}`{pushed}"
    described = found.described if found else Described(labels={}, history=())
    planned = FleetImage(
        name=str(wish.image.name),
        digest=found.digest if found else "",
        archs=wish.image.archs,
        ptx=wish.image.ptx,
        platform=wish.image.platform,
        claims=validating.claims_of(wish.image, holding.sources, described, holding.tiers, only=holding.only),
        reference=found.reference if found else "",
        why_not=why_not,
    )
    return Located(planned=planned, found=found)


def by_reference(reference: str, where: str, places: Places, platform: Platform) -> Found:
    """The image of `--image`: of this machine's engine, else of the registry that it names. Raises UserError, at
    `where`: it names nothing.
    """
    found = travel.in_engine(places.engine, reference) if places.engine else None
    if found is None and "/" in reference:
        found = travel.in_registry(Reference.parse(reference), platform)
    if found is None:
        then = "name an image of this machine's engine, or HOST/NAME:TAG, or HOST/NAME@sha256:..."
        raise UserError(Problem(where=where, cause="is nowhere", then=then))
    return found


def by_name(name: str, places: Places, platform: Platform) -> Found | None:
    """What this machine's engine has under a name, else as its candidate; else what the registry has so.

    What was published may be older than a candidate that was built here.
    """
    return by_tag((name, f"{name}-candidate"), places, platform)


def by_tag(tags: Sequence[str], places: Places, platform: Platform) -> Found | None:
    """What this machine's engine has under the first of these tags; else the registry. Raises UserError: no access."""
    for tag in tags if places.engine else ():
        if places.engine and (found := travel.in_engine(places.engine, tag)):
            return found
    references = [Reference(places.repository, tag) for tag in tags] if places.repository else []
    for reference in references:
        if found := travel.in_registry(reference, platform):
            return found
    return None


def known(
    ledger: Ledger, judged_before: Mapping[str, FleetRecord], results: Sequence[Path], planned: Iterable[FleetImage]
) -> dict[Pair, Known]:
    """What was judged of these images before: by this fleet (job's key -> record), and in results/runs.jsonl."""
    return planning.newest([*_of_ledger(ledger, judged_before, planned), *_of_results(results)])


def _of_ledger(
    ledger: Ledger, judged_before: Mapping[str, FleetRecord], planned: Iterable[FleetImage]
) -> Iterator[tuple[Pair, Known]]:
    """What the evidence says by today's claims: a claim may have changed since its record was written."""
    today = {(one.name, one.digest): one.claims for one in planned}
    for key, record in judged_before.items():
        job = ledger.job(key)
        if job is None or (job.image, job.digest) not in today:
            continue
        date, source = record.ended.astimezone(UTC), f"{record.worker.node}, {record.worker.executor}"
        try:
            verdict = judged(ledger, record, job, today[job.image, job.digest])
        except UserError as error:
            yield from planning.of_unusable(job, error.problems[0].cause, date, source)
            continue
        yield from planning.of_verdict(job, verdict, date, source)


def _of_results(folders: Sequence[Path]) -> Iterator[tuple[Pair, Known]]:
    for folder in folders:
        for line in records.read(folder):
            yield from planning.of_line(line, line.id)


def booked(ledger: Ledger) -> dict[Pair, str]:
    """What somebody else judges now: who, and since when."""
    found: dict[Pair, str] = {}
    alive: dict[str, bool] = {}
    for key in ledger.job_keys():
        booking, job = ledger.booked(key), ledger.job(key)
        if booking is None or job is None:
            continue
        if booking.run not in alive:
            alive[booking.run] = ledger.lives(booking.run)
        if alive[booking.run]:
            told = f"{booking.owner}, since {booking.since:%H:%M:%S} UTC"
            found.update(dict.fromkeys(job.pairs, told))
    return found


def sent(located: Sequence[Located], references: dict[str, str]) -> list[FleetImage]:
    """The same images with the references under which workers pull them. `references`: digest -> reference."""
    return [
        replace(one.planned, reference=references.get(one.planned.digest, one.planned.reference)) for one in located
    ]
