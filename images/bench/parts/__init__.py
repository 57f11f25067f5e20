"""What is measured, a part at a time: a function from BenchmarkRun to plain data (`images.bench.data`).

To add a part: a module here, its row in PARTS, its data's TypedDict, and a section in page.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from images.bench.data import PartData
from images.bench.parts import cold, delivery, fleet, planner, rebuild, sizes, start, trial
from images.bench.parts.session import BenchmarkRun

Part = Callable[[BenchmarkRun], PartData]

PARTS: Mapping[str, Part] = {
    "plan": planner.planner,
    "cold": cold.cold,
    "rebuild": rebuild.rebuild,
    "pull": sizes.pull,
    "sequence": sizes.sequence,
    "trial": trial.trial,
    "fleet": fleet.fleet,
    "delivery": delivery.delivery,
    start.PART: start.start,
}
"""What `--only` names, in the order in which they run."""
UNASKED = tuple(name for name in PARTS if name != start.PART)
"""What is measured without `--only`: no GPU is needed for it."""

__all__ = ["PARTS", "UNASKED", "BenchmarkRun", "Part"]
