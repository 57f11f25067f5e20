"""Results as the tables of docs/benchmarks.md. Pure: what was not measured is not in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from images.bench.accounting import Layer, Weight, fetched, weight
from images.bench.results import Machine
from images.bench.stats import grows_linearly, middle, spread

BUSY = 0.1
"""Part of the processors' time that others used just before a measurement, above which the machine counts as busy."""
_MEGABYTE = 1e6
_GPU_TIER = re.compile(r"^\| gpu tier \| (?P<claims>\d+) claims, (?P<seconds>\d+) s ", re.MULTILINE)
_GPU_DATE = re.compile(r"^\| date, engine \| (?P<date>[\d-]+),", re.MULTILINE)
_GPU_NAME = re.compile(r"^\| GPU \| one (?P<name>[^,]+),", re.MULTILINE)

Data = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One number against what it should be."""

    what: str
    goal: str
    measured: str
    met: bool


def tables(parts: Mapping[str, Data], recorded: str) -> str:
    """Everything between the markers of docs/benchmarks.md. `recorded`: results/README.md, which has the GPU's time."""
    goals = [goal for name, judged in _GOALS.items() if name in parts for goal in judged(parts[name]["data"])]
    sections = [section(parts[name]) for name, section in _SECTIONS.items() if name in parts]
    return "\n".join(["", *([_goals_table(goals)] if goals else []), *sections, *_gpu(recorded), ""])


# --- goals --------------------------------------------------------------------------------------------------------


def _goals_table(goals: Iterable[Goal]) -> str:
    rows = [[one.what, one.goal, one.measured, "met" if one.met else "**missed**"] for one in goals]
    return "### Goals\n\n" + _table(["what", "goal", "measured", ""], rows)


def _cold_goals(data: Data) -> Iterator[Goal]:
    sides = _by_side(data["runs"])
    above = sides["ours"] / sides["floor"]
    faster = sides["conventional"] / sides["ours"]
    yield Goal(what="cold build beside the floor", goal="<= 1.25 x", measured=f"{above:.2f} x", met=above <= 1.25)
    yield Goal(what="cold build beside conventional", goal=">= 2 x faster", measured=f"{faster:.1f} x", met=faster >= 2)
    yield _memory(data["host_peak"], "memory of the host process, build from the command line")


def _rebuild_goals(data: Data) -> Iterator[Goal]:
    seconds = middle([run["seconds"] for run in data["ours"]])
    layers = max(run["layers_changed"] for run in data["ours"])
    yield Goal(what="build after a small pin moved", goal="<= 8 s", measured=f"{seconds:.1f} s", met=seconds <= 8)
    yield Goal(what="layers changed by it", goal="1", measured=f"{layers}", met=layers == 1)
    yield _memory(max(run["peak"] for run in data["ours"]), "memory of the host process, build and trial")


def _memory(peak: int, what: str) -> Goal:
    return Goal(what=what, goal="< 200 MB", measured=f"{peak / _MEGABYTE:.0f} MB", met=peak < 200 * _MEGABYTE)


def _pull_goals(data: Data) -> Iterator[Goal]:
    gzip = {label: _weight(data, label).gzip for label in data["images"]}
    for label, most in (("one arch", 0.75), ("one arch, NVIDIA's sliced", 0.45)):
        if label in gzip and "conventional" in gzip:
            part = gzip[label] / gzip["conventional"]
            goal = f"<= {most:.2f} x conventional"
            yield Goal(what=f"gzip bytes, {label}", goal=goal, measured=f"{part:.2f} x", met=part <= most)


def _plan_goals(data: Data) -> Iterator[Goal]:
    counts = [row["images"] for row in data["sizes"]]
    costs = [middle([run["cpu"] for run in row["runs"]]) for row in data["sizes"]]
    what = f"`plan --json` of {counts[-1]:,} images"
    yield Goal(what=what, goal="< 2 s of CPU", measured=f"{costs[-1]:.2f} s", met=costs[-1] < 2)
    straight = grows_linearly(counts, costs)
    steps = [1000 * (y - x) / (b - a) for a, b, x, y in zip(counts, counts[1:], costs, costs[1:], strict=False)]
    shown = ", then ".join(f"{step:.2f} ms an image" for step in steps)
    yield Goal(what="its growth", goal="linear", measured=shown, met=straight)


# --- sections -----------------------------------------------------------------------------------------------------


def _cold(entry: Data) -> str:
    data = entry["data"]
    rows = []
    for side in ("floor", "ours", "conventional"):
        runs = [run for run in data["runs"] if run["side"] == side]
        rows.append([_SIDES[side], *_times([run["seconds"] for run in runs]), _loads(runs)])
    head = f"### From nothing: {data['image']}, {data['packages']} packages\n\n"
    table = _table(["", "seconds (median)", "all runs", "spread", "others"], rows)
    return head + table + "\n" + _slowest(data["runs"]) + _circumstances(entry)


_SIDES = {
    "floor": "the floor: wheels downloaded and unpacked by uv, outside Docker",
    "ours": "ours",
    "conventional": "conventional, on a base that is at hand",
}


def _slowest(runs: Sequence[Data]) -> str:
    """Where the time of the middle run of ours went."""
    ours = sorted((run for run in runs if run["side"] == "ours"), key=lambda run: float(run["seconds"]))
    steps = sorted(ours[len(ours) // 2]["steps"], key=lambda step: -float(step["seconds"]))[:7]
    rows = [[f"`{_step(step['name'])}`", f"{step['seconds']:.1f}"] for step in steps]
    return "\nWhere ours spends them (steps overlap):\n\n" + _table(["step", "seconds"], rows) + "\n"


def _step(name: str) -> str:
    short = re.sub(r": truetag-bench-\w+ && |--mount=\S* ?", "", name).replace("|", "\\|").replace("`", "")
    return short.strip() if len(short) <= 70 else short[:67] + "..."


def _rebuild(entry: Data) -> str:
    data = entry["data"]
    ours, conventional = data["ours"], data["conventional"]
    changed = f"{max(run['bytes_changed'] for run in ours) / _MEGABYTE:.1f} MB"
    rows = [
        [
            "ours, built",
            *_times([run["seconds"] for run in ours]),
            str(ours[0]["layers_changed"]),
            changed,
            _loads(ours),
        ],
        ["ours, built and proven", *_times([run["proven"] for run in ours]), "", "", ""],
        ["conventional, built", *_times([run["seconds"] for run in conventional]), "1", "", _loads(conventional)],
    ]
    head = f"### Again, after {data['moved']} moved in {data['image']}\n\n"
    return (
        head
        + _table(["", "seconds (median)", "all runs", "spread", "layers", "bytes", "others"], rows)
        + _circumstances(entry)
    )


def _pull(entry: Data) -> str:
    data, images = entry["data"], entry["data"]["images"]
    base = _weight(data, "conventional").gzip if "conventional" in images else 0
    rows = []
    for label, image in images.items():
        weighs = _weight(data, label)
        part = f"{weighs.gzip / base:.2f}" if base else ""
        rows.append([label, _mb(weighs.gzip), part, _mb(weighs.zstd), _mb(image["bytes"]), str(weighs.layers)])
    heads = ["image", "gzip MB", "of conventional", "zstd MB", "on disk MB", "layers"]
    return "### Bytes to pull and to keep\n\n" + _table(heads, rows) + _circumstances(entry)


def _sequence(entry: Data) -> str:
    data = entry["data"]
    named = [name for name in data.get("order", data["images"]) if name in data["images"]]
    layers = [_layers(data, name) for name in named]
    rows = [
        [f"{number}.", f"`{name}`", _mb(_weight(data, name).gzip), _mb(more.gzip), str(more.layers)]
        for number, (name, more) in enumerate(zip(named, fetched(layers), strict=True), 1)
    ]
    heads = ["", "image", "alone, gzip MB", "still to fetch, gzip MB", "layers of it"]
    return f"### {len(named)} images, pulled one after another\n\n" + _table(heads, rows) + _circumstances(entry)


def _plan(entry: Data) -> str:
    rows = []
    for row in entry["data"]["sizes"]:
        cpu = [run["cpu"] for run in row["runs"]]
        peak = max(run["peak"] for run in row["runs"])
        counted = [f"{row['images']:,}", f"{row['accepted']:,}", f"{row['locks']:,}"]
        rows.append([*counted, *_times(cpu, 2), _mb(peak), _loads(row["runs"])])
    heads = ["images", "accepted", "locks read", "CPU s (median)", "all runs", "spread", "memory MB", "others"]
    return "### The planner: `plan --json`\n\n" + _table(heads, rows) + _circumstances(entry)


def _trial(entry: Data) -> str:
    runs = entry["data"]["tiers"]
    rows = []
    for tier in dict.fromkeys(run["tier"] for run in runs):
        same = [run for run in runs if run["tier"] == tier]
        rows.append([tier, str(same[0]["claims"]), *_times([run["seconds"] for run in same]), _loads(same)])
    heads = ["tier", "claims", "seconds (median)", "all runs", "spread", "others"]
    head = f"### From start to verdict: {entry['data']['image']}\n\n"
    return head + _table(heads, rows) + _circumstances(entry)


def _gpu(recorded: str) -> Iterator[str]:
    tier, date, name = (pattern.search(recorded) for pattern in (_GPU_TIER, _GPU_DATE, _GPU_NAME))
    if tier and date and name:
        yield (
            f"The gpu tier was measured on another machine: {tier['claims']} claims in {tier['seconds']} s on one "
            f"{name['name']}, {date['date']} ([results](../results/README.md))."
        )


_SECTIONS: Mapping[str, Callable[[Data], str]] = {
    "cold": _cold,
    "rebuild": _rebuild,
    "pull": _pull,
    "sequence": _sequence,
    "plan": _plan,
    "trial": _trial,
}
_GOALS: Mapping[str, Callable[[Data], Iterator[Goal]]] = {
    "cold": _cold_goals,
    "rebuild": _rebuild_goals,
    "pull": _pull_goals,
    "plan": _plan_goals,
}


# --- cells --------------------------------------------------------------------------------------------------------


def _by_side(runs: Sequence[Data]) -> dict[str, float]:
    sides = dict.fromkeys(str(run["side"]) for run in runs)
    return {side: middle([float(run["seconds"]) for run in runs if run["side"] == side]) for side in sides}


def _layers(data: Data, label: str) -> list[Layer]:
    return [Layer.from_json(data["weighed"][digest]) for digest in data["images"][label]["layers"]]


def _weight(data: Data, label: str) -> Weight:
    return weight(_layers(data, label))


def _times(values: Sequence[float], digits: int = 1) -> list[str]:
    shown = ", ".join(f"{value:.{digits}f}" for value in values)
    apart = f"{spread(values):.0%}" if len(values) > 1 else "one run"
    return [f"**{middle(values):.{digits}f}**", shown, apart]


def _loads(runs: Iterable[Data]) -> str:
    return ", ".join(f"{run['load']['busy']:.0%}" for run in runs)


def _mb(count: float) -> str:
    return f"{count / _MEGABYTE:,.0f}"


def _circumstances(entry: Data) -> str:
    on = Machine(**entry["machine"])
    commit = f", commit {entry['commit']}" if entry["commit"] else ""
    busy = _busiest(entry["data"]) > BUSY
    word = " **The machine was busy with other work: read times as an upper bound.**" if busy else ""
    return f"\n{entry['date'][:10]}{commit}, on {on}.{word}\n"


def _busiest(data: Any) -> float:
    """The most that others used of the processors before any measurement."""
    if isinstance(data, Mapping):
        return max([float(data.get("busy", 0)), *map(_busiest, data.values())])
    return max(map(_busiest, data), default=0.0) if isinstance(data, list) else 0.0


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
