"""The file of results: one entry a part, with when, on what and under which load it was measured."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from images.config.paths import RESOURCES
from images.engine import Engine
from images.errors import Problem, UserError
from images.host import checkout

FILE = RESOURCES / "results" / "bench" / "results.json"
_FORMAT = 4


def read(file: Path = FILE) -> dict[str, Any]:
    """Part -> entry; nothing where there is no file. Raises UserError for one that is no such file."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["format"] == _FORMAT:
            return dict(found["parts"])
        cause = f"holds results in format {found['format']}, not in format {_FORMAT}"
    except (ValueError, KeyError, TypeError):
        cause = "holds no results of `python -m benchmarks`"
    raise UserError(Problem(where=str(file), cause=cause, then="name another file with --out, or take this one away"))


def keep(file: Path, part: str, entry: dict[str, Any]) -> None:
    """Put one part's entry in place of its last one. The file is whole at any time."""
    parts = {**read(file), part: entry}
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_text(json.dumps({"format": _FORMAT, "parts": dict(sorted(parts.items()))}, indent=1) + "\n")
    partial.replace(file)


def machine(engine: Engine) -> dict[str, Any]:
    """What a measurement is taken on, without names of owners or hosts. `memory` in bytes."""
    facts, info = engine.facts, engine.sdk.info()
    below = dict(info.get("DriverStatus") or ()).get("Backing Filesystem")
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": facts.cpus,
        "memory": facts.memory,
        "engine": facts.version,
        "storage": f"{info['Driver']} on {below}" if below else info["Driver"],
        "python": platform.python_version(),
    }


def revision() -> str:
    """The checkout's commit, with `-dirty` where other files than results differ from it; empty without git."""
    commit = checkout.git(RESOURCES, "rev-parse", "--short=10", "HEAD")
    changes = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results/bench")
    return f"{commit}-dirty" if commit and checkout.git(RESOURCES, *changes) else commit or ""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="minutes")


def load_now() -> float:
    """Processes that wanted a core, as a mean over the last minute; what we did ourselves in it counts, too."""
    return round(os.getloadavg()[0], 2)


def busy_now(seconds: float = 2.0) -> float:
    """The part of the processors' time that is used now, while we wait: by others, then."""
    before, start = _processor_time()
    time.sleep(seconds)
    after, end = _processor_time()
    return round((after - before) / max(end - start, 1), 3)


@contextmanager
def load_around() -> Iterator[dict[str, float]]:
    """What others use of the machine before what is inside (`busy`), and the load averages around it."""
    load = {"busy": busy_now(), "before": load_now()}
    yield load
    load["after"] = load_now()


def alternating(sides: Sequence[str], repeat: int) -> list[str]:
    """The order of all runs, every second round backwards: what runs early in one runs late in the next."""
    return [side for number in range(repeat) for side in (sides[::-1] if number % 2 else sides)]


def middle(values: Sequence[float]) -> float:
    """The median. Raises ValueError for no values: a median of nothing would be made up."""
    if not values:
        raise ValueError("nothing was measured")
    return median(values)


def _processor_time() -> tuple[int, int]:
    """Used, and in all, in ticks since the start (proc(5): user nice system idle iowait irq softirq steal)."""
    ticks = [int(word) for word in _lines("/proc/stat")[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).is_file() else []
