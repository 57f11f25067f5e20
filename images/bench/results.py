"""The file of results: one entry a part, with when, on what and under which load it was measured."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from images.bench.accounting import Layer
from images.bench.data import Entry, MachineData, PartData
from images.config.paths import RESOURCES
from images.engine import Engine
from images.errors import Problem, UserError
from images.host import checkout

FOLDER = RESOURCES / "results" / "bench"
FILE = FOLDER / "results.json"
DIRTY = "-dirty"
"""Ends a commit that the checkout's files differ from."""
_FORMAT = 3


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a measurement was taken on, without names of owners or hosts. `memory` in bytes."""

    processor: str
    cores: int
    memory: int
    engine: str
    storage: str
    python: str

    def as_json(self) -> MachineData:
        return MachineData(
            processor=self.processor,
            cores=self.cores,
            memory=self.memory,
            engine=self.engine,
            storage=self.storage,
            python=self.python,
        )

    def __str__(self) -> str:
        return (
            f"{self.cores} cores ({self.processor}), {self.memory / 1024**3:.0f} GiB, Docker Engine {self.engine}, "
            f"{self.storage}, Python {self.python}"
        )


def machine(engine: Engine) -> Machine:
    """This one, as far as the engine runs on it."""
    facts = engine.facts
    return Machine(
        processor=_processor(Path("/proc/cpuinfo")),
        cores=facts.cpus,
        memory=facts.memory,
        engine=facts.version,
        storage=facts.storage,
        python=platform.python_version(),
    )


def _processor(cpuinfo: Path) -> str:
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def load_now() -> float:
    """Processes that wanted a core, as a mean over the last minute; what we did ourselves in it counts, too."""
    return round(os.getloadavg()[0], 2)


def busy_now(seconds: float = 2.0) -> float:
    """The part of the processors' time that is used now, while we wait: by others, then."""
    before, start = _processor_time()
    time.sleep(seconds)
    after, end = _processor_time()
    return round((after - before) / max(end - start, 1), 3)


def _processor_time() -> tuple[int, int]:
    """Used, and in all, in ticks since the start (proc(5): user nice system idle iowait irq softirq steal)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def revision(root: Path = RESOURCES) -> str:
    """The checkout's commit, with `-dirty` where other files than results differ from it; empty without git."""
    commit = checkout.git(root, "rev-parse", "--short=10", "HEAD")
    if not commit:
        return ""
    results = f":(exclude){FOLDER.relative_to(RESOURCES).as_posix()}"
    clean = checkout.git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", results) == ""
    return commit if clean else f"{commit}{DIRTY}"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="minutes")


def entry(data: PartData, on: Machine, commit: str, *, began: str, seconds: float, finished: bool) -> Entry:
    """A part's results with their circumstances. `began`: when its first value was measured."""
    return {
        "date": began,
        "commit": commit,
        "machine": on.as_json(),
        "took": round(seconds),
        "finished": finished,
        "data": dict(data),
    }


def unfinished(found: Entry | None, on: Machine, commit: str) -> Entry | None:
    """The entry that an interrupted run left, where the same run can go on; else None.

    What was measured at another commit, machine or engine is none of it; nor, with files that differ from the commit,
    is it known what was.
    """
    if not found or found["finished"] or not commit or commit.endswith(DIRTY):
        return None
    return found if (found["commit"], found["machine"]) == (commit, on.as_json()) else None


def known_layers(parts: Mapping[str, Entry]) -> Iterator[Layer]:
    """All layers that any run measured: a digest stands for the same bytes for ever."""
    for part in parts.values():
        yield from map(Layer.from_json, part["data"].get("layers", {}).values())


def read(file: Path = FILE) -> dict[str, Entry]:
    """Part -> entry; nothing where there is no file. Raises UserError for one that is no such file."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        written = found["format"]
        if written == _FORMAT:
            return dict(found["parts"])
        if not isinstance(written, int):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        then = "`nox -s bench -- --out FILE` with another file; or take this one away"
        raise UserError(Problem(where=str(file), cause="holds no results of `nox -s bench`", then=then)) from None
    raise UserError(_of_another_format(file, written))


def _of_another_format(file: Path, written: int) -> Problem:
    cause = f"holds results in format {written}, not in format {_FORMAT}"
    older = "take it away: `nox -s bench` then measures everything once more"
    newer = "a newer checkout wrote it: `git pull`, or name another file with --out"
    return Problem(where=str(file), cause=cause, then=older if written < _FORMAT else newer)


def keep(file: Path, part: str, found: Entry) -> None:
    """Put one part's entry in place of its last one. The file is whole at any time."""
    parts = {**read(file), part: found}
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}.{time.monotonic_ns()}")
    partial.write_text(json.dumps({"format": _FORMAT, "parts": dict(sorted(parts.items()))}, indent=1) + "\n")
    partial.replace(file)
