"""Runs the suite in a container of an image and brings back evidence. The judge brings its own yardstick:
suite and claims come from this checkout, over whatever copy the image holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from images.engine import Engine
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

    Raises UserError when the suite could not even start there (no Python, say): such an image has no evidence.
    """
    image = engine.inspect(reference)
    tmpfs = f"rw,exec,nosuid,nodev,mode=1777,size={trial.bounds.scratch}"
    home = image.env.get("HOME", "/root")
    asked = claims.of(trial.tiers)
    command = ["python3", "-I", "-S", f"{_INSIDE}/validate", "--claims", f"{_INSIDE}/claims.json"]
    records: list[Record] = []
    complaints: list[str] = []
    with engine.container(
        image.id,
        command,
        tmpfs={"/tmp": tmpfs, home: tmpfs},
        scratch=[_INSIDE],
        memory=min(trial.bounds.memory, engine.facts.memory * 3 // 4),
    ) as container:
        container.put(suite_files(asked), _INSIDE)
        container.start()
        for line in container.lines(timeout=trial.bounds.timeout):
            record = _record(line.text) if line.stream == "stdout" else None
            if record is None:
                complaints.append(line.text)
                continue
            records.append(record)
            trial.on_record(record)
        end = container.wait(timeout=30)
    if not records and asked.claims:
        raise UserError(_not_started(reference, end.code, complaints), code=1)
    host = {"engine": engine.facts.version, "cpus": engine.facts.cpus, "gpus": [], "suite_exit": end.code}
    if end.oom:
        host["out_of_memory"] = True
    return Evidence(image=claims.image, digest=image.id, records=tuple(records), host=host)


def suite_files(claims: ClaimSet) -> Mapping[str, bytes]:
    """The suite as it goes into the container."""
    files = {
        f"validate/{path.relative_to(SUITE)}": path.read_bytes()
        for path in sorted(SUITE.rglob("*"))
        if path.suffix in (".py", ".yaml") and "__pycache__" not in path.parts
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
