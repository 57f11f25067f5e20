"""The fleet: thousands of pairs planned, and their jobs booked. No container starts."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from images.bench.data import FleetData, FleetPass, FleetSize
from images.bench.parts.session import SUBJECT, BenchmarkRun, load_around
from images.config.names import Arch
from images.errors import Problem, UserError
from images.fleet import booking, planning
from images.fleet.config import Fleet, WorkerType
from images.fleet.ledger import Ledger
from images.fleet.model import Job
from images.fleet.planning import FleetImage, PlanInputs
from images.planning import plan
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims

PAIRS = (1_000, 5_000, 10_000)
MACHINES = 1_000
"""Entries of `workers` in the fleet, as many of each architecture."""
_ARCHS = tuple(Arch(*pair) for pair in ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1)))
_EACH = 2 * len(_ARCHS) + 2
"""Pairs of an image: the static and the cpu tier, and both GPU tiers on each architecture."""


def fleet(bench: BenchmarkRun) -> FleetData:
    """Seconds to plan so many pairs for a fleet of MACHINES kinds of machines, and to book the jobs of those due.

    What was booked stays until the end: ext4 without a journal looks at each inode that was deleted in the last
    minutes whenever it makes a file. (Seen with Linux 6.18: 4 s became 20.)
    """
    workers = {
        f"m{number}": WorkerType(arch=_ARCHS[number % len(_ARCHS)].capability, gpus=8) for number in range(MACHINES)
    }
    machines = Fleet(workers=workers)
    with TemporaryDirectory() as folder:
        return {"machines": MACHINES, "sizes": [_size(bench, machines, count, Path(folder)) for count in PAIRS]}


def _size(bench: BenchmarkRun, machines: Fleet, count: int, folder: Path) -> FleetSize:
    images = _images(bench, -(-count // _EACH))
    passes = [_pass(images, machines, folder / f"{count}-{number}") for number in range(bench.repeat)]
    bench.say(f"{count} pairs: planned in {passes[-1]['planned']:.2f} s, booked in {passes[-1]['booked']:.2f} s")
    planned = planning.plan(images, PlanInputs(fleet=machines, now=datetime.now(UTC)))
    return {"pairs": len(planned), "jobs": passes[-1]["jobs"], "runs": passes}


def _images(bench: BenchmarkRun, count: int) -> list[FleetImage]:
    """Images that differ in name and digest, each with the claims of one that is real."""
    (planned,) = plan.select([SUBJECT], bench.sources)
    if planned.image is None:
        raise UserError(Problem(where=SUBJECT, cause="; ".join(planned.reasons), then="measure another image"))
    image = planned.image
    claims = image_claims(ClaimContext(image=image, facts=bench.sources.facts))
    return [
        FleetImage(
            name=f"{image.name}-n{number}",
            digest=f"sha256:{number:064x}",
            archs=_ARCHS,
            ptx=(),
            claims=claims,
            reference=f"registry.test/images@sha256:{number:064x}",
        )
        for number in range(count)
    ]


def _pass(images: list[FleetImage], machines: Fleet, folder: Path) -> FleetPass:
    with load_around() as load:
        start = time.monotonic()
        planned = planning.plan(images, PlanInputs(fleet=machines, now=datetime.now(UTC)))
        jobs = [job for group in planning.jobs(planned, images).values() for job in group]
        between = time.monotonic()
        _book(Ledger(folder), jobs)
        end = time.monotonic()
    return {
        "planned": round(between - start, 3),
        "booked": round(end - between, 3),
        "seconds": round(end - start, 3),
        "jobs": len(jobs),
        "load": load,
    }


def _book(ledger: Ledger, jobs: list[Job]) -> None:
    """As `fleet run` does (images/fleet/run.py), and give them back."""
    run_of = booking.new_run("local", [job.key for job in jobs])
    ledger.note(jobs)
    with ledger.running(run_of):
        for job in jobs:
            booking.take(ledger, run_of, job, {}, _refused)
        ledger.note_run(run_of)
        for job in jobs:
            ledger.release(job.key, run_of.id)


def _refused(key: str, text: str) -> None:
    raise UserError(Problem(where=key, cause=f"was not booked: {text}", then="give the same command again"), code=1)
