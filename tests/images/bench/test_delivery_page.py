"""The benchmark `delivery` as tables, goals and a figure."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from images.bench import delivery_page, page
from tests.images.bench.test_page import entry
from tests.support.bench import LOAD

ID = "sha256:" + "1" * 64


def run(side: str, compression: str, seconds: float, **other: Any) -> dict[str, Any]:
    told = {"engine": "26.1.5", "link": "loopback", "image_id": ID, "bytes": 3e9, "cpu": 9.0, "loss": 6.9, "load": LOAD}
    steps = {"imported": 4.0, "stepped": 6.0}
    return {"side": side, "compression": compression, "seconds": seconds, **told, **steps, **other}


def pushed(by: str, seconds: float, busy: float = 0.01) -> dict[str, Any]:
    load = {**LOAD, "busy": busy}
    return {"side": "all archs", "compression": "gzip", "by": by, "seconds": seconds, "bytes": 3e9, "load": load}


def delivered(*runs: dict[str, Any], pushes: Any = (), blocked: Any = ()) -> Any:
    images = {run["side"]: ID for run in runs}
    return {"image": "i", "images": images, "pushes": [*pushes], "runs": [*runs], "blocked": [*blocked]}


def tables(data: Any, finished: bool = True) -> str:
    return page.tables({"delivery": entry(data, finished)}, "")  # type: ignore[dict-item]


CONVENTIONAL = run("conventional", "gzip", 50)


def test_ours_is_judged_by_the_compression_that_the_engine_reads_best() -> None:
    good = tables(delivered(CONVENTIONAL, run("all archs", "gzip", 40), run("all archs", "zstd", 19)))
    assert "| pull until unpacked, all archs | <= 0.40 x conventional | 0.38 x (26.1.5 loopback) | met |" in good
    assert (
        "| registry to the first CPU step, all archs | <= 0.50 x conventional | 0.45 x (26.1.5 loopback) | met |"
        in good
    )
    bad = tables(delivered(CONVENTIONAL, run("all archs", "gzip", 40)))
    assert "| 0.80 x (26.1.5 loopback) | **missed** |" in bad


def test_the_worst_link_of_any_engine_counts() -> None:
    slow = [run("conventional", "gzip", 50, link="1 Gb/s"), run("all archs", "zstd", 30, link="1 Gb/s")]
    text = tables(delivered(CONVENTIONAL, run("all archs", "zstd", 10), *slow))
    assert "| 0.20 x (26.1.5 loopback), 0.60 x (26.1.5 1 Gb/s) | **missed** |" in text


def test_no_time_of_one_engine_stands_beside_that_of_another() -> None:
    text = tables(delivered(CONVENTIONAL, run("all archs", "zstd", 10, engine="28.5.2")))
    assert "| pull until unpacked, all archs | <= 0.40 x conventional | not measured | undecided: not all" in text


def gap(what: str, expected: bool = False) -> dict[str, Any]:
    return {"what": what, "reason": "archive/tar: a | b", "expected": expected}


def test_nothing_is_met_by_what_is_left_where_something_was_not_measured() -> None:
    runs = [CONVENTIONAL, run("all archs", "zstd", 10)]
    known = tables(delivered(*runs, blocked=[gap("zstd on engine 20.10", expected=True)]))
    assert known.count("| met |") == 4
    lacking = tables(delivered(*runs, blocked=[gap("engine 28.5")]))
    assert "| met |" not in lacking and lacking.count("| undecided: not all was measured |") == 5
    missed = tables(delivered(CONVENTIONAL, run("all archs", "zstd", 40), blocked=[gap("engine 28.5")]))
    assert "| 0.80 x (26.1.5 loopback) | **missed** |" in missed


def test_a_step_that_came_to_another_loss_is_told() -> None:
    text = tables(delivered(CONVENTIONAL, run("all archs", "zstd", 10, loss=7.0)))
    assert "| loss of the first step | one value | 2 different in 2 runs | **missed** |" in text


def test_a_push_is_judged_beside_the_engines_own_of_the_same_image() -> None:
    text = tables(delivered(CONVENTIONAL, pushes=[pushed("the engine", 100), pushed("truetag", 29)]))
    assert "| push, all archs, gzip, beside the engine's own | <= 0.30 x | 0.29 x | met |" in text
    twice = [pushed("truetag", 20), pushed("the engine", 100), pushed("truetag", 60)]
    assert "| 0.40 x | **missed** |" in tables(delivered(CONVENTIONAL, pushes=twice))
    busy = tables(delivered(CONVENTIONAL, pushes=[pushed("the engine", 100, busy=0.5), pushed("truetag", 29)]))
    assert "| 0.29 x | (machine busy: undecided) |" in busy


def test_an_image_that_became_another_on_the_way_is_told() -> None:
    same = tables(delivered(CONVENTIONAL, run("all archs", "zstd", 10)))
    assert "| the same image ID on each engine | all | 2 of 2 pulls | met |" in same
    other = tables(delivered(CONVENTIONAL, run("all archs", "zstd", 10, image_id="sha256:2")))
    assert "| 1 of 2 pulls | **missed** |" in other


def test_what_was_not_measured_is_said_with_its_reason() -> None:
    text = tables(delivered(CONVENTIONAL, blocked=[gap("all archs (zstd) on engine 20.10")]))
    assert "Not measured:\n\n- all archs (zstd) on engine 20.10: archive/tar: a \\| b\n" in text
    assert "Not measured" not in tables(delivered(CONVENTIONAL))


def test_an_interrupted_run_shows_its_pushes_and_judges_nothing() -> None:
    text = tables(delivered(pushes=[pushed("the engine", 100)]), finished=False)
    assert "| all archs | gzip | the engine | 3,000 | **100.0** | 100.0 | one run | 1% |" in text
    assert "Goals" not in text and "delivery.svg" not in text


def test_the_figure_has_a_bar_for_each_variant_with_the_seconds_of_each_stage() -> None:
    runs = [CONVENTIONAL, run("conventional", "gzip", 30), run("all archs", "zstd", 10)]
    drawn = ElementTree.fromstring(delivery_page.chart(delivered(*runs)))
    texts = [element.text for element in drawn.iterfind(".//{*}text")]
    assert texts[-4:] == ["conventional, gzip", "46.0", "all archs, zstd", "16.0"]
    widths = [float(one.attrib["width"]) for one in drawn.iterfind(".//{*}rect")][4:]
    assert sum(widths[:3]) == pytest.approx(560) and widths[0] / widths[3] == pytest.approx(4, rel=0.01)


def test_the_figure_is_of_the_engine_with_most_links() -> None:
    runs = [
        run("conventional", "gzip", 50, engine="20.10"),
        CONVENTIONAL,
        run("conventional", "gzip", 50, link="1 Gb/s"),
    ]
    assert b"Docker Engine 26.1.5" in delivery_page.chart(delivered(*runs))
