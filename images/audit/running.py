"""Runs an image's own Python to see whether it works: as the image's user, without network, rights or a way out.

What it prints is the word of strangers: only records of probes that were asked for count, each once, and a hostile
image may print whatever it likes. The report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from images.audit.cleaning import cleaned
from images.audit.reading import INSIDE, Limits, record_of
from images.engine import ContainerSpec, Engine, ImageInfo, TimedOut
from images.engine.containers import TooMuchOutput
from images.engine.gpus import Attachment
from images.validation.run import suite_files
from validate.claims import ClaimSet, Tier
from validate.evidence import Outcome, Record

_SCRATCH = 4 << 30
_MEMORY = 12 << 30
_PROCESSES = 1024


@dataclass(frozen=True, kw_only=True)
class Run:
    """Which Python measures what."""

    python: str
    claims: ClaimSet
    limits: Limits
    gpus: Attachment


def records(engine: Engine, image: ImageInfo, run: Run, on_record: Callable[[Record], None]) -> list[Record]:
    """What the image's own Python measured of these claims. A probe that left no record is recorded as such."""
    found: dict[str, Record] = {}
    asked = list(dict.fromkeys(claim.probe for claim in run.claims.claims))
    end = ""
    try:
        for record in _records(engine, image, run):
            if record.probe in asked and record.probe not in found:
                found[record.probe] = record
                on_record(record)
    except (TimedOut, TooMuchOutput) as error:
        end = error.problems[0].cause
    lost = f"the image's Python left no record of it{f': the container {end}' if end else ''}"
    silent = [Record(probe=one, outcome=Outcome.SILENT, seconds=0.0, log=lost) for one in asked if one not in found]
    return [*found.values(), *silent]


def _records(engine: Engine, image: ImageInfo, run: Run) -> Iterator[Record]:
    with engine.container(_spec(engine, image, run)) as container:
        container.put(suite_files(run.claims), INSIDE)
        container.start()
        for line in container.lines(run.limits.run, most=run.limits.output):
            record = record_of(line.text) if line.stream == "stdout" else None
            if record:
                yield replace(record, log=str(cleaned(record.log)))
        container.wait(timeout=60)


def _spec(engine: Engine, image: ImageInfo, run: Run) -> ContainerSpec:
    gpus = run.gpus
    tmpfs = f"rw,exec,nosuid,nodev,mode=1777,size={_SCRATCH}"
    tiers = [Tier.CPU, *([Tier.GPU] if gpus.attached else [])]
    command = [run.python, "-I", "-S", f"{INSIDE}/validate", "--claims", f"{INSIDE}/claims.json"]
    command += [word for tier in tiers for word in ("--tier", str(tier))]
    return ContainerSpec(
        image.id,
        [*command, "--timeout", str(run.limits.probe)],
        tmpfs=dict.fromkeys(("/tmp", image.env.get("HOME") or "/root"), tmpfs),
        volumes=[INSIDE],
        env=gpus.environment(image.env) if gpus.attached else {},
        binds=gpus.binds if gpus.attached else {},
        devices=gpus.devices if gpus.attached else (),
        device_requests=gpus.device_requests if gpus.attached else (),
        memory=min(_MEMORY, engine.facts.memory * 3 // 4),
        processes=_PROCESSES,
        capabilities=[],
    )
