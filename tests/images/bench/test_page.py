"""Results as tables: what is judged, and what is not."""

from typing import Any

from images.bench import page, results
from images.maintenance import generate
from tests.support.bench import LOAD, ON, SOURCES, layer
from tests.support.checkout import ROOT

TOOK = {"static": 8.0, "cpu": 25.0, "static and cpu": 31.0}


def entry(data: dict[str, object], finished: bool = True) -> dict[str, object]:
    return results.entry(data, ON, "c" * 40, began="2026-01-02T03:04+00:00", seconds=9, finished=finished)


def cold(ours: float, busy: float = 0.01, pulled: float = 0, side: str = "ours") -> dict[str, object]:
    seconds = {"lower bound": 20.0, "ours": ours, "conventional": 100.0}
    runs = [
        {"side": one, "seconds": value, "load": {**LOAD, "busy": busy if one == side else 0.01}, "steps": []}
        for one, value in seconds.items()
    ]
    pulls = [{"seconds": pulled, "load": LOAD, "bytes": 1_500e6, "layers": 2}] if pulled else []
    return entry({"image": "i", "packages": 70, "host_peak": 90e6, "runs": runs, "base_pulls": pulls})


def rebuilt(seconds: float, layers: int = 1) -> dict[str, object]:
    ours = {"side": "ours", "seconds": seconds, "in_engine": 4.0, "validated": 31.0, "peak": 90e6, "load": LOAD}
    ours |= {"layers_changed": layers, "bytes_changed": 2e6}
    conventional = {"side": "conventional", "seconds": 60.0, "load": LOAD, "layers_changed": 3}
    return entry({"image": "i", "moved": "p", "runs": [ours, conventional]})


def planned_in(*runs: tuple[float, float]) -> dict[str, object]:
    sizes = [
        {
            "images": count,
            "accepted": count,
            "locks": count,
            "runs": [{"cpu": cpu, "peak": 1e8, "load": LOAD} for cpu in both],
        }
        for count, both in zip((100, 1_000, 5_000, 10_000), runs, strict=True)
    ]
    return entry({"sizes": sizes})


def test_goals_are_met_or_missed_by_the_numbers_alone() -> None:
    good, bad = (page.tables({"cold": cold(ours)}, "") for ours in (24.0, 60.0))
    assert "| cold build beside the lower bound | <= 1.25 x | 1.20 x | met |" in good
    assert "| cold build beside the lower bound | <= 1.25 x | 3.00 x | **missed** |" in bad
    assert "| cold build beside conventional | >= 2 x faster | 1.7 x | **missed** |" in bad


def test_no_ratio_is_a_verdict_where_others_used_the_machine() -> None:
    text = page.tables({"cold": cold(24.0, busy=0.11, side="lower bound")}, "")
    assert "| cold build beside the lower bound | <= 1.25 x | 1.20 x | (machine busy: undecided) |" in text
    assert "| cold build beside conventional | >= 2 x faster | 4.2 x | met |" in text


def test_the_pull_of_a_base_is_a_row_beside_the_strict_one() -> None:
    text = page.tables({"cold": cold(60.0, pulled=40.0)}, "")
    assert "| cold build beside conventional | >= 2 x faster | 1.7 x | **missed** |" in text
    assert "| the same, with the pull of conventional's base | >= 2.5 x faster | 2.3 x | **missed** |" in text
    assert "| pull of its base, registry on this machine: 1,500 MB, 2 layers | **40.0** |" in text
    assert "pull of" not in page.tables({"cold": cold(60.0)}, "")


def test_both_tiers_are_judged_by_the_command_that_asks_for_both() -> None:
    tiers = [{"tier": tier, "claims": 9, "seconds": took, "peak": 1, "load": LOAD} for tier, took in TOOK.items()]
    text = page.tables({"trial": entry({"image": "i", "tiers": tiers})}, "")
    assert "| static and cpu tier | <= 30 s | 31.0 s | **missed** |" in text
    assert "| static and cpu | 9 | **31.0** | 31.0 | one run | 1% |" in text
    assert "<= 30 s" not in page.tables({"trial": entry({"image": "i", "tiers": tiers[:2]})}, "")


def test_why_the_pull_of_a_base_was_not_timed_is_on_the_page() -> None:
    untimed: Any = cold(60.0)
    untimed["data"]["base_not_pulled"] = "apt-get -q update: a | b\nended"
    text = page.tables({"cold": untimed}, "")
    assert (
        "| pull of its base, registry on this machine | not timed: apt-get -q update: a \\| b ended |  |  |  |" in text
    )
    assert "with the pull of conventional's base" not in text


def test_a_rebuild_is_judged_to_the_candidate_and_tells_when_it_was_validated() -> None:
    text = page.tables({"rebuild": rebuilt(7.5)}, "")
    assert "| small pin moved: command to candidate | <= 8 s | 7.5 s (validated: 31.0 s) | met |" in text
    assert "| conventional, in the engine | **60.0** | 60.0 | one run | 3 |" in text
    assert "| small pin moved: command to candidate | <= 8 s | 9.0 s" in page.tables({"rebuild": rebuilt(9.0)}, "")
    assert "| layers changed by it | 1 | 2 | **missed** |" in page.tables({"rebuild": rebuilt(7.5, layers=2)}, "")


def test_growth_is_undecided_where_runs_differ_by_more_than_a_step() -> None:
    straight = page.tables({"plan": planned_in((0.6, 0.9), (0.7, 0.72), (1.1, 1.12), (1.6, 1.64))}, "")
    assert "| its growth | linear | 0.10 ms an image, then 0.10 ms an image | met |" in straight
    noisy = page.tables({"plan": planned_in((0.6, 0.6), (0.7, 1.2), (1.1, 1.12), (1.6, 1.64))}, "")
    assert "| undecided: runs differ by more than a step |" in noisy


def test_growth_that_was_measured_once_is_said_to_be() -> None:
    data: Any = planned_in((0.6, 0.6), (0.7, 0.72), (1.1, 1.12), (1.6, 1.64))
    for row in data["data"]["sizes"]:
        del row["runs"][1:]
    text = page.tables({"plan": data}, "")
    assert "| undecided: measured once (`--repeat 2` tells how far runs differ) |" in text
    assert "runs differ by more than a step" not in text


def test_an_interrupted_run_is_told_as_one_and_judged_by_nothing() -> None:
    images = {label: {"bytes": 1, "layers": [label]} for label in ("one arch", "conventional")}
    data = {"images": images, "layers": {label: layer(label, 9).as_json() for label in images}}
    text = page.tables({"pull": entry(data, finished=False)}, "")
    assert "Interrupted" in text and "Goals" not in text
    assert "Goals" in page.tables({"pull": entry(data)}, "")


def test_bytes_are_set_beside_the_conventional_image() -> None:
    gzips = {"all archs": 100, "one arch": 80, "conventional": 100}
    images = {label: {"bytes": 1, "layers": [label]} for label in gzips}
    measured = {label: layer(label, gzip).as_json() for label, gzip in gzips.items()}
    text = page.tables({"pull": entry({"images": images, "layers": measured})}, "")
    assert "| gzip bytes, one arch | <= 0.75 x conventional | 0.80 x | **missed** |" in text
    assert "NVIDIA's pruned" not in text


def test_a_busy_machine_is_said() -> None:
    assert "busy" not in page.tables({"cold": cold(24.0)}, "")
    assert "The machine was busy" in page.tables({"cold": cold(24.0, busy=0.4)}, "")


def test_nothing_is_said_of_what_was_not_measured() -> None:
    assert page.tables({}, "").strip() == ""


def test_the_gpu_tier_is_told_as_of_another_machine() -> None:
    text = page.tables({}, (ROOT / "results" / "history.md").read_text())
    assert "measured on another machine" in text and "H100" in text


def test_the_page_in_the_docs_is_current() -> None:
    path = "docs/benchmarks.md"
    assert generate.files(SOURCES)[path] == (ROOT / path).read_bytes()


def fleet_in(*runs: tuple[float, ...]) -> dict[str, object]:
    sizes = [
        {
            "pairs": count,
            "jobs": count,
            "runs": [{"planned": 0.1, "booked": one - 0.1, "seconds": one, "load": LOAD} for one in several],
        }
        for count, several in zip((1_000, 5_000, 10_000), runs, strict=True)
    ]
    return {"fleet": entry({"machines": 1000, "sizes": sizes})}


def test_a_fleets_plan_is_judged_by_its_largest_size_and_by_its_growth() -> None:
    good = page.tables(fleet_in((1.0, 1.1), (4.9, 5.0), (9.8, 9.9)), "")
    assert "| 10,000 pairs of a fleet planned and booked | <= 10 s | 9.85 s | met |" in good
    assert "a pair | met |" in good and "| 10,000 | 10,000 | 0.10 |" in good
    bad = page.tables(fleet_in((1.0, 1.1), (4.9, 5.0), (19.8, 19.9)), "")
    assert "| <= 10 s | 19.85 s | **missed** |" in bad and "a pair | **missed** |" in bad
