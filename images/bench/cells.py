"""What tables of docs/benchmarks.md are made of: goals, cells, and when a machine counts as busy. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from images.bench.data import (
    BasePull,
    BuildRun,
    DeliveryPush,
    DeliveryRun,
    FleetPass,
    OverheadRun,
    PlanRun,
    RebuildRun,
    TierRun,
)
from images.bench.stats import middle, spread

BUSY = 0.1
"""Part of the processors' time that others used just before a measurement, above which the machine counts as busy."""
MEGABYTE = 1e6

Timed = BuildRun | RebuildRun | BasePull | TierRun | PlanRun | FleetPass | OverheadRun | DeliveryPush | DeliveryRun


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One number against what it should be."""

    what: str
    goal: str
    measured: str
    met: bool | str
    """Or why what was measured does not say."""

    @property
    def verdict(self) -> str:
        return self.met if isinstance(self.met, str) else "met" if self.met else "**missed**"


def ratio(what: str, goal: str, measured: str, met: bool, runs: Sequence[Timed]) -> Goal:
    """Times beside each other: no verdict where others used the machine during any of them."""
    busy = busiest(runs) > BUSY
    return Goal(what=what, goal=goal, measured=measured, met="(machine busy: undecided)" if busy else met)


def seconds(runs: Sequence[Timed]) -> float:
    """The median of what runs took."""
    return middle([float(run["seconds"]) for run in runs])


def times(values: Sequence[float], digits: int = 1) -> list[str]:
    """The median, all values, and how far they are apart: three cells."""
    shown = ", ".join(f"{value:.{digits}f}" for value in values)
    spread_text = f"{spread(values):.0%}" if len(values) > 1 else "one run"
    return [f"**{middle(values):.{digits}f}**", shown, spread_text]


def loads(runs: Iterable[Timed]) -> str:
    """What others used of the machine before each run."""
    return ", ".join(f"{run['load']['busy']:.0%}" for run in runs)


def megabytes(count: float) -> str:
    return f"{count / MEGABYTE:,.0f}"


def busiest(data: Any) -> float:
    """The most that others used of the processors before any measurement."""
    if isinstance(data, Mapping):
        return max([float(data.get("busy", 0)), *map(busiest, data.values())])
    return max(map(busiest, data), default=0.0) if isinstance(data, list) else 0.0


def cell(text: str) -> str:
    """Any text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
