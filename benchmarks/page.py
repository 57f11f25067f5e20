"""Results as the tables of docs/benchmarks.md, and the figure of `delivery`. Pure: what was not measured is not there.

A run is a mapping, as its part made it; `load.busy` is what others used of the processors just before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.results import middle
from benchmarks.session import TEMPLATES
from images.context.templates import environment

CHART = "docs/delivery.svg"
BUSY = 0.1
"""Part of the processors' time that others used, above which a machine counts as busy."""
_WIDTH, _ROW, _HEAD = 560, 22, 34
"""Pixels of the longest bar, of a row, and of the title of a link."""
Run = Mapping[str, Any]
_SIDES = {
    "lower bound": "the lower bound: wheels downloaded and unpacked by uv, outside Docker",
    "ours": "ours",
    "conventional": "conventional, on a base that is at hand",
}


def tables(parts: Mapping[str, Any]) -> str:
    """Everything between the markers of docs/benchmarks.md. `parts`: part -> entry."""
    found = [
        section(parts[name]["data"]) + _circumstances(parts[name])
        for name, section in _SECTIONS.items()
        if name in parts
    ]
    return "\n".join(["", *found, ""])


def _cold(data: Run) -> str:
    rows = []
    for side, called in _SIDES.items():
        runs = _of(data["runs"], side)
        rows.append([called, *_times(runs, "seconds"), _loads(runs)])
    ours = sorted(_of(data["runs"], "ours"), key=lambda run: float(run["seconds"]))
    longest = sorted(ours[len(ours) // 2]["steps"], key=lambda step: -float(step["seconds"]))[:7]
    steps = [[f"`{_step(step['name'])}`", f"{step['seconds']:.1f}"] for step in longest]
    head = f"### From nothing: {data['image']}, {data['packages']} packages\n\n"
    table = _table(["", "seconds (median)", "all runs", "others"], rows)
    return f"{head}{table}\nWhere ours spends them (steps overlap):\n\n{_table(['step', 'seconds'], steps)}"


def _step(name: str) -> str:
    short = re.sub(r": truetag-bench-\w+ && |--mount=\S* ?", "", name).replace("|", "\\|").replace("`", "").strip()
    return short if len(short) <= 70 else short[:67] + "..."


def _rebuild(data: Run) -> str:
    ours, conventional = (_of(data["runs"], side) for side in ("ours", "conventional"))
    changed = f"{max(run['bytes_changed'] for run in ours) / 1e6:.1f} MB"
    layers = [str(max(run["layers_changed"] for run in runs)) for runs in (ours, conventional)]
    rows = [
        ["ours, in the engine", *_times(ours, "seconds"), layers[0], changed, _loads(ours)],
        ["ours, command to validated", *_times(ours, "validated"), "", "", ""],
        ["conventional, in the engine", *_times(conventional, "seconds"), layers[1], "", _loads(conventional)],
    ]
    head = f"### Rebuilt after {data['moved']} moved in {data['image']}\n\n"
    return head + _table(["", "seconds (median)", "all runs", "layers", "bytes", "others"], rows)


def _plan(data: Run) -> str:
    runs = data["runs"]
    counted = [f"{data['images']:,}", f"{data['locks']:,}", *_times(runs, "cpu", 2)]
    heads = ["images", "locks read", "CPU s (median)", "all runs", "memory MB", "others"]
    row = [*counted, _megabytes(max(run["peak"] for run in runs)), _loads(runs)]
    return "### The planner: `plan --json`\n\n" + _table(heads, [row])


def _validation(data: Run) -> str:
    rows = [
        [tier, str(runs[0]["claims"]), *_times(runs, "seconds"), _loads(runs)]
        for (tier,), runs in _grouped(data["tiers"], "tier")
    ]
    heads = ["tier", "claims", "seconds (median)", "all runs", "others"]
    return f"### From start to verdict: {data['image']}\n\n" + _table(heads, rows)


def _delivery(data: Run) -> str:
    """Pushes, the figure, and a table for each engine and link. A ratio is that of medians in one table."""
    parts = [f"### From a registry to the first training step: {data['image']}\n\n", _pushes(data["pushes"])]
    if data["runs"]:
        parts.append(f"![Seconds from a registry to the first training step]({CHART.rpartition('/')[2]})\n")
    for (engine, link), runs in _grouped(data["runs"], "engine", "link"):
        parts.append(f"Docker Engine {engine}, {link}:\n\n{_pulls(runs)}")
    if data["blocked"]:
        gaps: dict[str, list[str]] = {}
        for gap in data["blocked"]:
            reason = _cell(gap["reason"])
            gaps.setdefault(reason.partition(": ")[2] or reason, []).append(_cell(gap["what"]))
        parts.append("Not measured:\n\n" + "".join(f"- {'; '.join(what)}: {why}\n" for why, what in gaps.items()))
    return parts[0] + "\n".join(parts[1:])


def _pushes(pushes: Sequence[Run]) -> str:
    rows = [
        [*variant, _megabytes(runs[0]["bytes"]), *_times(runs, "seconds"), _loads(runs)]
        for variant, runs in _grouped(pushes, "side", "compression", "by")
    ]
    heads = ["push, registry on this machine", "compression", "by", "MB", "seconds (median)", "all runs"]
    return _table([*heads, "others"], rows)


def _pulls(runs: Sequence[Run]) -> str:
    variants = _grouped(runs, "side", "compression")
    base = dict(variants).get(("conventional", "gzip"))
    rows = []
    for variant, same in variants:
        of_base = [f"{_seconds(same, whole) / _seconds(base, whole):.2f}" if base else "" for whole in (False, True)]
        stepped = f"{middle([run['stepped'] for run in same]):.1f}"
        row = [*variant, _megabytes(same[0]["bytes"]), *_times(same, "seconds"), of_base[0], stepped]
        rows.append([*row, f"**{_seconds(same, True):.1f}**", of_base[1], _loads(same)])
    pull = ["MB", "pull, s (median)", "all runs", "of conventional"]
    step = ["start to step, s", "pull and step, s", "of conventional", "others"]
    return _table(["image", "compression", *pull, *step], rows)


def _seconds(runs: Sequence[Run], whole: bool) -> float:
    """Of the pull; `whole`: until the first training step."""
    return middle([run["seconds"] + (run["stepped"] if whole else 0) for run in runs])


def chart(data: Run) -> bytes:
    """The figure of the engine with the most links, as SVG: a bar a variant, of pull, imports and first step."""
    places = _grouped(data["runs"], "engine", "link")
    engines = [engine for (engine, _), _ in places]
    most = max(engines, key=engines.count)
    links = {link: _grouped(runs, "side", "compression") for (engine, link), runs in places if engine == most}
    scale = _WIDTH / max(_seconds(same, True) for variants in links.values() for _, same in variants)
    groups, y = [], _HEAD
    for link, variants in links.items():
        bars = [_bar(variant, same, scale, y + 10 + row * _ROW) for row, (variant, same) in enumerate(variants)]
        groups.append({"link": link, "y": y, "bars": bars})
        y += _HEAD + _ROW * len(bars)
    values = {"engine": most, "image": data["image"], "groups": groups, "height": y + _ROW}
    return environment(TEMPLATES).get_template("delivery.svg.j2").render(values).encode()


def _bar(variant: Sequence[str], runs: Sequence[Run], scale: float, y: int) -> dict[str, Any]:
    stages = [
        middle([run["seconds"] for run in runs]),
        middle([run["imported"] for run in runs]),
        middle([run["stepped"] - run["imported"] for run in runs]),
    ]
    pieces = [
        {"x": round(sum(stages[:number]) * scale, 1), "width": round(stage * scale, 1)}
        for number, stage in enumerate(stages)
    ]
    total = _seconds(runs, True)  # the median of whole runs, as the table has it: not the sum of the stages' medians
    return {
        "label": ", ".join(variant),
        "y": y,
        "pieces": pieces,
        "end": round(total * scale, 1),
        "total": f"{total:.1f}",
    }


_SECTIONS: Mapping[str, Callable[[Run], str]] = {
    "cold": _cold,
    "rebuild": _rebuild,
    "plan": _plan,
    "trial": _validation,
    "delivery": _delivery,
}


def _circumstances(entry: Run) -> str:
    on, commit = entry["machine"], f", commit {entry['commit']}" if entry["commit"] else ""
    machine = f"{on['cores']} cores ({on['processor']}), {on['memory'] / 1024**3:.0f} GiB, Docker Engine {on['engine']}"
    busy = max(_busy(entry["data"]), default=0.0) > BUSY
    note = " **The machine was busy with other work: read times as an upper bound.**" if busy else ""
    return f"\n{entry['date'][:10]}{commit}, on {machine}, {on['storage']}, Python {on['python']}.{note}\n"


def _busy(data: Any) -> Iterator[float]:
    """What others used of the processors before any measurement."""
    if isinstance(data, Mapping):
        yield float(data.get("busy", 0))
    for value in data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ():
        yield from _busy(value)


def _of(runs: Sequence[Run], side: str) -> list[Run]:
    return [run for run in runs if run["side"] == side]


def _grouped(runs: Sequence[Run], *keys: str) -> list[tuple[tuple[str, ...], list[Run]]]:
    """The runs that agree in these keys, in the order in which they were first measured; conventional first."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in keys), []).append(run)
    return sorted(groups.items(), key=lambda one: one[0][0] != "conventional")


def _times(runs: Sequence[Run], field: str, digits: int = 1) -> list[str]:
    """The median and all values: two cells."""
    values = [float(run[field]) for run in runs]
    return [f"**{middle(values):.{digits}f}**", ", ".join(f"{value:.{digits}f}" for value in values)]


def _loads(runs: Iterable[Run]) -> str:
    """What others used of the machine before each run."""
    return ", ".join(f"{run['load']['busy']:.0%}" for run in runs)


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f}"


def _cell(text: str) -> str:
    """Any text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in [heads, ["---"] * len(heads), *rows])
