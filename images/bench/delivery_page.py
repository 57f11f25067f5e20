"""The part `delivery` as tables, goals and a figure. Pure.

A ratio is that of two medians of one run, on one engine and one link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from images.bench import cells
from images.bench.cells import Goal
from images.bench.data import DeliveryData, DeliveryPush, DeliveryRun
from images.bench.stats import middle
from images.context.templates import environment

CHART = "docs/delivery.svg"
_CONVENTIONAL, _GZIP = "conventional", "gzip"
_BY_US = "truetag"
_WIDTH, _ROW, _HEAD = 560, 22, 34
"""Pixels of the longest bar, of a row, and of the title of a link."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A variant's seconds on one link: medians of each stage, one after another."""

    label: str
    stages: tuple[float, float, float]

    @property
    def total(self) -> float:
        return sum(self.stages)


def section(data: DeliveryData) -> str:
    """Pushes, the figure, and a table for each engine and link."""
    head = f"### From a registry to the first training step: {data['image']}\n\n"
    figure = f"![Seconds from a registry to the first training step]({CHART.rpartition('/')[2]})\n\n"
    parts = [head, _pushes(data["pushes"]), *([figure] if data["runs"] else [])]
    for (engine, link), runs in _places(data):
        parts.append(f"Docker Engine {engine}, {link}:\n\n{_pulls(runs)}\n")
    if data["blocked"]:
        parts.append("Not measured:\n\n" + "".join(f"- {cells.cell(line)}\n" for line in data["blocked"]))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def goals(data: DeliveryData) -> Iterator[Goal]:
    """Judged on every link of every engine: the worst of them counts."""
    yield from _push_goals(data["pushes"])
    for side, most in (("all archs", 0.4), ("one arch", 0.3)):
        yield from _ratios(data, f"pull until unpacked, {side}", side, most, stepped=False)
    yield from _ratios(data, "registry to the first CPU step, all archs", "all archs", 0.5, stepped=True)
    if data["runs"]:
        wrong = [run for run in data["runs"] if run["image_id"] != data["images"][run["side"]]]
        measured = f"{len(data['runs']) - len(wrong)} of {len(data['runs'])} pulls"
        yield Goal(what="the same image ID on each engine", goal="all", measured=measured, met=not wrong)


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
        )
        for (side, compression), same in _variants(runs)
    ]


def _pushes(pushes: Sequence[DeliveryPush]) -> str:
    rows = []
    for one in pushes:
        told = [cells.megabytes(one["bytes"]), f"{one['seconds']:.1f}", cells.loads([one])]
        rows.append([one["side"], one["compression"], one["by"], *told])
    heads = ["push, registry on this machine", "compression", "by", "MB", "seconds", "others"]
    return cells.table(heads, rows)


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
    by_engine = [one for one in pushes if one["by"] != _BY_US and one["side"] != _CONVENTIONAL]
    for one in pushes:
        same = [other for other in by_engine if other["side"] == one["side"]]
        if one["by"] == _BY_US and same:
            part = one["seconds"] / same[0]["seconds"]
            what = f"push, {one['side']}, {one['compression']}, beside the engine's own"
            yield cells.ratio(what, "<= 0.30 x", f"{part:.2f} x", part <= 0.3, [one, same[0]])


def _ratios(data: DeliveryData, what: str, side: str, most: float, *, stepped: bool) -> Iterator[Goal]:
    """A side's smaller compression beside conventional: zstd where the engine reads it."""
    parts, used = {}, []
    for (engine, link), runs in _places(data):
        variants = dict(_variants(runs))
        base, ours = variants.get((_CONVENTIONAL, _GZIP)), variants.get((side, "zstd")) or variants.get((side, _GZIP))
        if base and ours:
            parts[f"{engine} {link}"] = _seconds(ours, stepped) / _seconds(base, stepped)
            used += [*base, *ours]
    if parts:
        shown = ", ".join(f"{part:.2f} x ({place})" for place, part in parts.items())
        yield cells.ratio(what, f"<= {most:.2f} x conventional", shown, max(parts.values()) <= most, used)


def _seconds(runs: Sequence[DeliveryRun], stepped: bool) -> float:
    """Of the pull; with `stepped`, until the first training step."""
    return middle([run["seconds"] + (run["stepped"] if stepped else 0) for run in runs])


def _median(runs: Sequence[DeliveryRun], field: str) -> float:
    return middle([float(run[field]) for run in runs])  # type: ignore[literal-required]


Place = tuple[str, str]
"""Engine and link; or side and compression."""


def _places(data: DeliveryData) -> list[tuple[Place, list[DeliveryRun]]]:
    """The runs of each engine and link, in the order in which they were first measured."""
    return _grouped(data["runs"], lambda run: (run["engine"], run["link"]))


def _variants(runs: Sequence[DeliveryRun]) -> list[tuple[Place, list[DeliveryRun]]]:
    """The runs of each side and compression, conventional first."""
    found = _grouped(runs, lambda run: (run["side"], run["compression"]))
    return sorted(found, key=lambda one: (one[0][0] != _CONVENTIONAL, one[0]))


def _grouped(runs: Sequence[DeliveryRun], key: Callable[[DeliveryRun], Place]) -> list[tuple[Place, list[DeliveryRun]]]:
    groups: dict[Place, list[DeliveryRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.items())
