"""Results as the tables of docs/benchmarks.md. Pure: what was not measured is not in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from images.bench import cells, delivery_page, overhead_page, start_page
from images.bench.accounting import Layer, Total, fetched, total
from images.bench.cells import Goal
from images.bench.data import (
    TOGETHER,
    BasePulls,
    BuildRun,
    ColdData,
    Entry,
    FleetData,
    PlanData,
    RebuildData,
    RebuildRun,
    SizesData,
    TrialData,
)
from images.bench.results import Machine
from images.bench.stats import grows_linearly, middle, steps

_LARGE = 1_000
"""Images from which on the planner's growth is judged: below, the start of Python is most of it."""
_GPU_TIER = re.compile(r"^\| gpu tier \| (?P<claims>\d+) claims, (?P<seconds>\d+) s ", re.MULTILINE)
_GPU_DATE = re.compile(r"^\| date, engine \| (?P<date>[\d-]+),", re.MULTILINE)
_GPU_NAME = re.compile(r"^\| GPU \| one (?P<name>[^,]+),", re.MULTILINE)
Side = TypeVar("Side", BuildRun, RebuildRun)


def tables(parts: Mapping[str, Entry], recorded: str) -> str:
    """Everything between the markers of docs/benchmarks.md. `recorded`: results/history.md."""
    ended = {name: entry["data"] for name, entry in parts.items() if entry["finished"]}
    goals = [goal for name, judged in _GOALS.items() if name in ended for goal in judged(ended[name])]
    sections = [
        section(parts[name]["data"]) + _circumstances(parts[name])
        for name, section in _SECTIONS.items()
        if name in parts
    ]
    return "\n".join(["", *([_goals_table(goals)] if goals else []), *sections, *_gpu(recorded), ""])


# --- goals --------------------------------------------------------------------------------------------------------


def _goals_table(goals: Iterable[Goal]) -> str:
    rows = [[one.what, one.goal, one.measured, one.verdict] for one in goals]
    return "### Goals\n\n" + cells.table(["what", "goal", "measured", ""], rows)


def _cold_goals(data: ColdData) -> Iterator[Goal]:
    by_side = {side: _of(data["runs"], side) for side in ("lower bound", "ours", "conventional")}
    bound, ours, conventional = (cells.seconds(runs) for runs in by_side.values())
    both = [*by_side["ours"], *by_side["conventional"]]
    above, faster = ours / bound, conventional / ours
    what, goal = "cold build beside the lower bound", "<= 1.25 x"
    yield cells.ratio(what, goal, f"{above:.2f} x", above <= 1.25, [*by_side["lower bound"], *by_side["ours"]])
    what, goal = "cold build beside conventional", ">= 2 x faster"
    yield cells.ratio(what, goal, f"{faster:.1f} x", faster >= 2, both)
    if pulls := data["base_pulls"]:
        with_base = (conventional + cells.seconds(pulls)) / ours
        what = "the same, with the pull of conventional's base"
        yield cells.ratio(what, ">= 2.5 x faster", f"{with_base:.1f} x", with_base >= 2.5, [*both, *pulls])
    yield _memory(data["host_peak"], "memory of the host process, `build --no-cache` until validated")


def _rebuild_goals(data: RebuildData) -> Iterator[Goal]:
    ours = _of(data["runs"], "ours")
    seconds, validated = cells.seconds(ours), middle([run["validated"] for run in ours])
    layers = max(run["layers_changed"] for run in ours)
    what, measured = "small pin moved: command to candidate", f"{seconds:.1f} s (validated: {validated:.1f} s)"
    yield Goal(what=what, goal="<= 8 s", measured=measured, met=seconds <= 8)
    yield Goal(what="layers changed by it", goal="1", measured=f"{layers}", met=layers == 1)
    yield _memory(max(run["peak"] for run in ours), "memory of the host process, that build until validated")


def _memory(peak: int, what: str) -> Goal:
    return Goal(what=what, goal="< 200 MB", measured=f"{peak / cells.MEGABYTE:.0f} MB", met=peak < 200 * cells.MEGABYTE)


def _pull_goals(data: SizesData) -> Iterator[Goal]:
    gzip = {label: _total(data, label).gzip for label in data["images"]}
    for label, most in (("one arch", 0.75), ("one arch, NVIDIA's pruned", 0.45)):
        if label in gzip and "conventional" in gzip:
            part = gzip[label] / gzip["conventional"]
            goal = f"<= {most:.2f} x conventional"
            yield Goal(what=f"gzip bytes, {label}", goal=goal, measured=f"{part:.2f} x", met=part <= most)


def _plan_goals(data: PlanData) -> Iterator[Goal]:
    cpu = {row["images"]: [run["cpu"] for run in row["runs"]] for row in data["sizes"]}
    largest = max(cpu)
    what, seconds = f"`plan --json` of {largest:,} images", middle(cpu[largest])
    yield Goal(what=what, goal="< 2 s of CPU", measured=f"{seconds:.2f} s", met=seconds < 2)
    counts = [count for count in sorted(cpu) if count >= _LARGE]
    runs = [cpu[count] for count in counts]
    shown = ", then ".join(f"{1000 * step:.2f} ms an image" for step in steps(counts, runs))
    linear = grows_linearly(counts, runs)
    yield Goal(what="its growth", goal="linear", measured=shown, met=_unsure(runs) if linear is None else linear)


def _trial_goals(data: TrialData) -> Iterator[Goal]:
    if both := [run for run in data["tiers"] if run["tier"] == TOGETHER]:
        seconds = cells.seconds(both)
        yield cells.ratio("static and cpu tier", "<= 30 s", f"{seconds:.1f} s", seconds <= 30, both)


def _fleet_goals(data: FleetData) -> Iterator[Goal]:
    seconds = {row["pairs"]: [run["seconds"] for run in row["runs"]] for row in data["sizes"]}
    largest, counts = max(seconds), sorted(seconds)
    what, took = f"{largest:,} pairs of a fleet planned and booked", middle(seconds[largest])
    yield Goal(what=what, goal="<= 10 s", measured=f"{took:.2f} s", met=took <= 10)
    runs = [seconds[count] for count in counts]
    shown = ", then ".join(f"{1000 * step:.2f} ms a pair" for step in steps(counts, runs))
    linear = grows_linearly(counts, runs)
    yield Goal(what="its growth", goal="linear", measured=shown, met=_unsure(runs) if linear is None else linear)


def _unsure(runs: Sequence[Sequence[float]]) -> str:
    """Why runs do not show whether something grows linearly."""
    if min(map(len, runs)) < 2:
        return "undecided: measured once (`--repeat 2` tells how far runs differ)"
    return "undecided: runs differ by more than a step"


# --- sections -----------------------------------------------------------------------------------------------------


def _cold(data: ColdData) -> str:
    rows = []
    for side in ("lower bound", "ours", "conventional"):
        runs = _of(data["runs"], side)
        rows.append([_SIDES[side], *cells.times([run["seconds"] for run in runs]), cells.loads(runs)])
    rows += _base_pulls(data)
    head = f"### From nothing: {data['image']}, {data['packages']} packages\n\n"
    table = cells.table(["", "seconds (median)", "all runs", "spread", "others"], rows)
    return head + table + "\n" + _slowest(data["runs"])


def _base_pulls(data: BasePulls) -> Iterator[list[str]]:
    """The row of the conventional base, or why its pull was not timed."""
    what, pulls = "pull of its base, registry on this machine", data["base_pulls"]
    if pulls:
        size, layers = cells.megabytes(pulls[0]["bytes"]), pulls[0]["layers"]
        yield [
            f"{what}: {size} MB, {layers} layers",
            *cells.times([run["seconds"] for run in pulls]),
            cells.loads(pulls),
        ]
    elif reason := data.get("base_not_pulled"):  # older runs kept none
        yield [what, f"not timed: {cells.cell(reason)}", "", "", ""]


_SIDES = {
    "lower bound": "the lower bound: wheels downloaded and unpacked by uv, outside Docker",
    "ours": "ours",
    "conventional": "conventional, on a base that is at hand",
}


def _slowest(runs: Sequence[BuildRun]) -> str:
    """Where the time of the middle run of ours went."""
    ours = sorted(_of(runs, "ours"), key=lambda run: float(run["seconds"]))
    longest = sorted(ours[len(ours) // 2]["steps"], key=lambda step: -float(step["seconds"]))[:7]
    rows = [[f"`{_step(step['name'])}`", f"{step['seconds']:.1f}"] for step in longest]
    return "\nWhere ours spends them (steps overlap):\n\n" + cells.table(["step", "seconds"], rows) + "\n"


def _step(name: str) -> str:
    short = re.sub(r": truetag-bench-\w+ && |--mount=\S* ?", "", name).replace("|", "\\|").replace("`", "")
    return short.strip() if len(short) <= 70 else short[:67] + "..."


def _rebuild(data: RebuildData) -> str:
    ours, conventional = (_of(data["runs"], side) for side in ("ours", "conventional"))
    changed = f"{max(run['bytes_changed'] for run in ours) / cells.MEGABYTE:.1f} MB"
    rows = [
        [
            "ours, command to candidate",
            *cells.times([run["seconds"] for run in ours]),
            _most(ours),
            changed,
            cells.loads(ours),
        ],
        ["of them in the engine", *cells.times([run["in_engine"] for run in ours]), "", "", ""],
        ["ours, command to validated", *cells.times([run["validated"] for run in ours]), "", "", ""],
        [
            "conventional, in the engine",
            *cells.times([run["seconds"] for run in conventional]),
            _most(conventional),
            "",
            cells.loads(conventional),
        ],
    ]
    head = f"### Rebuilt after {data['moved']} moved in {data['image']}\n\n"
    return head + cells.table(["", "seconds (median)", "all runs", "spread", "layers", "bytes", "others"], rows)


def _pull(data: SizesData) -> str:
    images = data["images"]
    base = _total(data, "conventional").gzip if "conventional" in images else 0
    rows = []
    for label, image in images.items():
        size = _total(data, label)
        part = f"{size.gzip / base:.2f}" if base else ""
        rows.append(
            [
                label,
                cells.megabytes(size.gzip),
                part,
                cells.megabytes(size.zstd),
                cells.megabytes(image["bytes"]),
                str(size.layers),
            ]
        )
    heads = ["image", "gzip MB", "of conventional", "zstd MB", "on disk MB", "layers"]
    return "### Bytes to pull and to keep\n\n" + cells.table(heads, rows)


def _sequence(data: SizesData) -> str:
    named = [name for name in data.get("order", data["images"]) if name in data["images"]]
    layers = [_layers(data, name) for name in named]
    rows = [
        [
            f"{number}.",
            f"`{name}`",
            cells.megabytes(_total(data, name).gzip),
            cells.megabytes(more.gzip),
            str(more.layers),
        ]
        for number, (name, more) in enumerate(zip(named, fetched(layers), strict=True), 1)
    ]
    heads = ["", "image", "alone, gzip MB", "still to fetch, gzip MB", "layers of it"]
    return f"### {len(named)} images, pulled one after another\n\n" + cells.table(heads, rows)


def _plan(data: PlanData) -> str:
    rows = []
    for row in data["sizes"]:
        cpu = [run["cpu"] for run in row["runs"]]
        peak = max(run["peak"] for run in row["runs"])
        counted = [f"{row['images']:,}", f"{row['accepted']:,}", f"{row['locks']:,}"]
        rows.append([*counted, *cells.times(cpu, 2), cells.megabytes(peak), cells.loads(row["runs"])])
    heads = ["images", "accepted", "locks read", "CPU s (median)", "all runs", "spread", "memory MB", "others"]
    return "### The planner: `plan --json`\n\n" + cells.table(heads, rows)


def _trial(data: TrialData) -> str:
    runs = data["tiers"]
    rows = []
    for tier in dict.fromkeys(run["tier"] for run in runs):
        same = [run for run in runs if run["tier"] == tier]
        rows.append([tier, str(same[0]["claims"]), *cells.times([run["seconds"] for run in same]), cells.loads(same)])
    heads = ["tier", "claims", "seconds (median)", "all runs", "spread", "others"]
    head = f"### From start to verdict: {data['image']}\n\n"
    return head + cells.table(heads, rows)


def _fleet(data: FleetData) -> str:
    rows = []
    for row in data["sizes"]:
        runs = row["runs"]
        parts = [f"{middle([run[part] for run in runs]):.2f}" for part in ("planned", "booked")]
        times = cells.times([run["seconds"] for run in runs], 2)
        rows.append([f"{row['pairs']:,}", f"{row['jobs']:,}", *parts, *times, cells.loads(runs)])
    heads = ["pairs", "jobs", "planned in s", "booked in s", "seconds (median)", "all runs", "spread", "others"]
    head = f"### A fleet of {data['machines']:,} kinds of machines: plan and bookings, without containers\n\n"
    return head + cells.table(heads, rows)


def _gpu(recorded: str) -> Iterator[str]:
    tier, date, name = (pattern.search(recorded) for pattern in (_GPU_TIER, _GPU_DATE, _GPU_NAME))
    if tier and date and name:
        yield (
            f"The gpu tier was measured on another machine: {tier['claims']} claims in {tier['seconds']} s on one "
            f"{name['name']}, {date['date']} ([results](../results/history.md))."
        )


_SECTIONS: Mapping[str, Callable[[Any], str]] = {
    "cold": _cold,
    "rebuild": _rebuild,
    "pull": _pull,
    "sequence": _sequence,
    "plan": _plan,
    "trial": _trial,
    "fleet": _fleet,
    "overhead": overhead_page.section,
    "overhead-whole": overhead_page.section,
    "delivery": delivery_page.section,
    "start": start_page.section,
}
_GOALS: Mapping[str, Callable[[Any], Iterator[Goal]]] = {
    "cold": _cold_goals,
    "rebuild": _rebuild_goals,
    "pull": _pull_goals,
    "plan": _plan_goals,
    "trial": _trial_goals,
    "fleet": _fleet_goals,
    "overhead": overhead_page.goals,
    "overhead-whole": overhead_page.goals,
    "delivery": delivery_page.goals,
    "start": start_page.goals,
}


# --- rows ---------------------------------------------------------------------------------------------------------


def _of(runs: Sequence[Side], side: str) -> list[Side]:
    return [run for run in runs if run["side"] == side]


def _most(runs: Sequence[RebuildRun]) -> str:
    """Layers that changed, at most."""
    return str(max(run["layers_changed"] for run in runs))


def _layers(data: SizesData, label: str) -> list[Layer]:
    return [Layer.from_json(data["layers"][digest]) for digest in data["images"][label]["layers"]]


def _total(data: SizesData, label: str) -> Total:
    return total(_layers(data, label))


def _circumstances(entry: Entry) -> str:
    on = Machine(**entry["machine"])
    commit = f", commit {entry['commit']}" if entry["commit"] else ""
    busy = cells.busiest(entry["data"]) > cells.BUSY
    busy_note = " **The machine was busy with other work: read times as an upper bound.**" if busy else ""
    part = "" if entry["finished"] else " **Interrupted: not all was measured, and no goal is judged.**"
    return f"\n{entry['date'][:10]}{commit}, on {on}.{busy_note}{part}\n"
