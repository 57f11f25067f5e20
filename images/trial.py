"""Runs the suite in a container of an image and brings back evidence. The judge brings its own yardstick:
suite and claims come from this checkout, over whatever copy the image holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from images.engine import Engine, Exit, ImageInfo
from images.errors import Problem, UserError
from images.matrix import ROOT
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence, Record

SUITE = ROOT / "validate"
_INSIDE = "/judge"
"""A volume of its own: the container's root is read-only."""
_GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a trial may use. Memory in bytes, timeout in seconds for the whole suite."""

    memory: int = 12 * _GIB
    scratch: int = 4 * _GIB
    timeout: float = 1200


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How to try an image."""

    tiers: Sequence[Tier]
    bounds: Bounds = field(default_factory=Bounds)
    on_record: Callable[[Record], None] = lambda _record: None


def run(engine: Engine, reference: str, claims: ClaimSet, trial: Trial) -> Evidence:
    """Measure an image: no network, read-only root, its own user, bounded memory, always removed.

    Files are read in a container of their own, with the image's home as it is; whatever runs the image's code gets
    an empty, writable home. Raises UserError when the suite could not even start there (no Python, say).
    """
    image = engine.inspect(reference)
    reading = [tier for tier in trial.tiers if tier is Tier.STATIC]
    running = [tier for tier in trial.tiers if tier is not Tier.STATIC]
    writable = ["/tmp"]
    records: list[Record] = []
    host: dict[str, Any] = {"engine": engine.facts.version, "cpus": engine.facts.cpus, "gpus": []}
    for tiers, folders in ((reading, writable), (running, [*writable, image.env.get("HOME", "/root")])):
        asked = claims.of(tiers)
        if asked.claims:
            found, end = _run_suite(engine, image, asked, folders, trial)
            records += found
            host["out_of_memory"] = host.get("out_of_memory", False) or end.oom
    return Evidence(
        image=claims.image,
        digest=image.id,
        records=tuple(records),
        host=host,
        claims=claims.of(trial.tiers).claims,
    )


def _run_suite(
    engine: Engine, image: ImageInfo, claims: ClaimSet, writable: Sequence[str], trial: Trial
) -> tuple[list[Record], Exit]:
    tmpfs = f"rw,exec,nosuid,nodev,mode=1777,size={trial.bounds.scratch}"
    command = ["python3", "-I", "-S", f"{_INSIDE}/validate", "--claims", f"{_INSIDE}/claims.json"]
    records: list[Record] = []
    complaints: list[str] = []
    with engine.container(
        image.id,
        command,
        tmpfs=dict.fromkeys(writable, tmpfs),
        scratch=[_INSIDE],
        memory=min(trial.bounds.memory, engine.facts.memory * 3 // 4),
    ) as container:
        container.put(suite_files(claims), _INSIDE)
        container.start()
        for line in container.lines(timeout=trial.bounds.timeout):
            record = _record(line.text) if line.stream == "stdout" else None
            if record is None:
                complaints.append(line.text)
                continue
            records.append(record)
            trial.on_record(record)
        end = container.wait(timeout=30)
    if not records:
        name = image.tags[0] if image.tags else image.id
        raise UserError(_not_started(name, end.code, complaints), code=1)
    return records, end


def suite_files(claims: ClaimSet) -> Mapping[str, bytes]:
    """The suite as it goes into the container."""
    files = {
        f"validate/{path.relative_to(SUITE)}": path.read_bytes()
        for path in sorted(SUITE.rglob("*"))
        if path.suffix in (".py", ".json") and "__pycache__" not in path.parts
    }
    return {**files, "claims.json": claims.dumps().encode()}


def _record(line: str) -> Record | None:
    try:
        data: Any = json.loads(line)
        return Record.from_json(data)
    except (ValueError, TypeError, KeyError):
        return None


def _not_started(reference: str, code: int, complaints: Sequence[str]) -> Problem:
    tail = " | ".join(text.strip() for text in complaints[-3:] if text.strip()) or f"status {code}, nothing printed"
    return Problem(
        where=reference,
        cause=f"the suite did not start in it: {tail}",
        then=f"`docker run --rm -it {reference} python3 --version`: an image needs a python3 on its PATH",
    )
