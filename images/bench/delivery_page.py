"""The part `delivery` as tables, goals and a figure. Pure.

A ratio is that of two medians of one run, on one engine and one link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from images.bench import cells
from images.bench.cells import Goal
from images.bench.data import DeliveryData, DeliveryPush, DeliveryRun
from images.bench.stats import middle
from images.context.templates import environment

CHART = "docs/delivery.svg"
_CONVENTIONAL, _GZIP = "conventional", "gzip"
_BY_US = "truetag"
_GAPS = "undecided: not all was measured"
_WIDTH, _ROW, _HEAD = 560, 22, 34
"""Pixels of the longest bar, of a row, and of the title of a link."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A variant's seconds on one link: medians of each stage, one after another."""

    label: str
    stages: tuple[float, float, float]
    total: float
    """The median of whole runs, as the table has it: not the sum of the stages' medians."""


def section(data: DeliveryData) -> str:
    """Pushes, the figure, and a table for each engine and link."""
    head = f"### From a registry to the first training step: {data['image']}\n\n"
    figure = f"![Seconds from a registry to the first training step]({CHART.rpartition('/')[2]})\n\n"
    parts = [head, _pushes(data["pushes"]), *([figure] if data["runs"] else [])]
    for (engine, link), runs in _places(data):
        parts.append(f"Docker Engine {engine}, {link}:\n\n{_pulls(runs)}\n")
    if data["blocked"]:
        lines = (f"- {cells.cell(gap['what'])}: {cells.cell(gap['reason'])}\n" for gap in data["blocked"])
        parts.append("Not measured:\n\n" + "".join(lines))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def goals(data: DeliveryData) -> Iterator[Goal]:
    """Judged on every link of every engine: the worst of them counts. Where one is missing, nothing is met."""
    yield from _push_goals(data["pushes"])
    for side, most in (("all archs", 0.4), ("one arch", 0.3)):
        yield from _ratios(data, f"pull until unpacked, {side}", side, most, stepped=False)
    yield from _ratios(data, "registry to the first CPU step, all archs", "all archs", 0.5, stepped=True)
    runs = data["runs"]
    same = [run for run in runs if run["image_id"] == data["images"][run["side"]]]
    met = _unless_gaps(data, len(same) == len(runs))
    measured = f"{len(same)} of {len(runs)} pulls"
    yield Goal(what="the same image ID on each engine", goal="all", measured=measured, met=met)
    losses = {run["loss"] for run in runs}
    met = _unless_gaps(data, len(losses) <= 1)
    yield Goal(
        what="loss of the first step",
        goal="one value",
        measured=f"{len(losses)} different in {len(runs)} runs",
        met=met,
    )


def _unless_gaps(data: DeliveryData, met: bool) -> bool | str:
    """What was measured can miss a goal; only all that was to be measured can meet it."""
    return _GAPS if met and (not data["runs"] or any(not gap["expected"] for gap in data["blocked"])) else met


def chart(data: DeliveryData) -> bytes:
    """The figure of the engine with the most links, as SVG."""
    places = _places(data)
    engines = [engine for (engine, _), _ in places]
    most = max(engines, key=engines.count)
    groups = [(link, _bars(runs)) for (engine, link), runs in places if engine == most]
    longest = max(bar.total for _, bars in groups for bar in bars)
    drawn, y = [], _HEAD
    for link, bars in groups:
        drawn.append({"link": link, "y": y, "bars": _drawn(bars, y, _WIDTH / longest)})
        y += _HEAD + _ROW * len(bars)
    values = {"engine": most, "image": data["image"], "groups": drawn, "height": y + _ROW}
    return environment().get_template("bench/delivery.svg.j2").render(values).encode()


def _drawn(bars: Sequence[Bar], y: int, scale: float) -> list[dict[str, Any]]:
    rows = []
    for number, bar in enumerate(bars):
        starts = [sum(bar.stages[:stage]) for stage in range(len(bar.stages))]
        pieces = [
            {"x": round(start * scale, 1), "width": round(length * scale, 1)}
            for start, length in zip(starts, bar.stages, strict=True)
        ]
        rows.append(
            {
                "label": bar.label,
                "y": y + 10 + number * _ROW,
                "pieces": pieces,
                "end": round(bar.total * scale, 1),
                "total": f"{bar.total:.1f}",
            }
        )
    return rows


def _bars(runs: Sequence[DeliveryRun]) -> list[Bar]:
    return [
        Bar(
            label=f"{side}, {compression}",
            stages=(
                _median(same, "seconds"),
                _median(same, "imported"),
                middle([run["stepped"] - run["imported"] for run in same]),
            ),
            total=_seconds(same, stepped=True),
        )
        for (side, compression), same in _variants(runs)
    ]


def _pushes(pushes: Sequence[DeliveryPush]) -> str:
    rows = []
    for (side, compression, by), same in _grouped(pushes, lambda one: (one["side"], one["compression"], one["by"])):
        told = [cells.megabytes(same[0]["bytes"]), *cells.times([one["seconds"] for one in same]), cells.loads(same)]
        rows.append([side, compression, by, *told])
    heads = ["push, registry on this machine", "compression", "by", "MB", "seconds (median)", "all runs", "spread"]
    return cells.table([*heads, "others"], rows)


def _pulls(runs: Sequence[DeliveryRun]) -> str:
    base = dict(_variants(runs)).get((_CONVENTIONAL, _GZIP))
    rows = []
    for (side, compression), same in _variants(runs):
        of_base = [f"{_seconds(same, whole) / _seconds(base, whole):.2f}" if base else "" for whole in (False, True)]
        rows.append(
            [
                side,
                compression,
                cells.megabytes(same[0]["bytes"]),
                *cells.times([run["seconds"] for run in same]),
                of_base[0],
                f"{_median(same, 'cpu'):.1f}",
                f"{_median(same, 'imported'):.1f}",
                f"{_median(same, 'stepped'):.1f}",
                f"**{_seconds(same, True):.1f}**",
                of_base[1],
                cells.loads(same),
            ]
        )
    pull = ["MB", "pull, s (median)", "all runs", "spread", "of conventional", "CPU s of the engine"]
    step = ["start to import, s", "start to step, s", "pull and step, s", "of conventional", "others"]
    return cells.table(["image", "compression", *pull, *step], rows)


def _push_goals(pushes: Sequence[DeliveryPush]) -> Iterator[Goal]:
    groups = _grouped(pushes, lambda one: (one["side"], one["compression"], one["by"]))
    by_engine = {side: runs for (side, _, by), runs in groups if by != _BY_US and side != _CONVENTIONAL}
    for (side, compression, by), runs in groups:
        if by == _BY_US and side in by_engine:
            part = cells.seconds(runs) / cells.seconds(by_engine[side])
            what = f"push, {side}, {compression}, beside the engine's own"
            yield cells.ratio(what, "<= 0.30 x", f"{part:.2f} x", part <= 0.3, [*runs, *by_engine[side]])


def _ratios(data: DeliveryData, what: str, side: str, most: float, *, stepped: bool) -> Iterator[Goal]:
    """A side's smaller compression beside conventional: zstd where the engine reads it."""
    parts, used = {}, []
    for (engine, link), runs in _places(data):
        variants = dict(_variants(runs))
        base, ours = variants.get((_CONVENTIONAL, _GZIP)), variants.get((side, "zstd")) or variants.get((side, _GZIP))
        if base and ours:
            parts[f"{engine} {link}"] = _seconds(ours, stepped) / _seconds(base, stepped)
            used += [*base, *ours]
    goal, shown = f"<= {most:.2f} x conventional", ", ".join(f"{part:.2f} x ({place})" for place, part in parts.items())
    met = _unless_gaps(data, bool(parts) and max(parts.values()) <= most)
    if isinstance(met, str) or not parts:
        yield Goal(what=what, goal=goal, measured=shown or "not measured", met=met or _GAPS)
    else:
        yield cells.ratio(what, goal, shown, met, used)


def _seconds(runs: Sequence[DeliveryRun], stepped: bool) -> float:
    """Of the pull; with `stepped`, until the first training step."""
    return middle([run["seconds"] + (run["stepped"] if stepped else 0) for run in runs])


def _median(runs: Sequence[DeliveryRun], field: str) -> float:
    return middle([float(run[field]) for run in runs])  # type: ignore[literal-required]


Place = tuple[str, str]
"""Engine and link; or side and compression."""
Timed = TypeVar("Timed", DeliveryPush, DeliveryRun)
Key = TypeVar("Key", bound=tuple[str, ...])


def _places(data: DeliveryData) -> list[tuple[Place, list[DeliveryRun]]]:
    """The runs of each engine and link, in the order in which they were first measured."""
    return _grouped(data["runs"], lambda run: (run["engine"], run["link"]))


def _variants(runs: Sequence[DeliveryRun]) -> list[tuple[Place, list[DeliveryRun]]]:
    """The runs of each side and compression, conventional first."""
    found = _grouped(runs, lambda run: (run["side"], run["compression"]))
    return sorted(found, key=lambda one: (one[0][0] != _CONVENTIONAL, one[0]))


def _grouped(runs: Sequence[Timed], key: Callable[[Timed], Key]) -> list[tuple[Key, list[Timed]]]:
    groups: dict[Key, list[Timed]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.items())
