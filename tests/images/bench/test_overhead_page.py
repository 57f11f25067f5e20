"""The benchmark `overhead` as a table and goals."""

from __future__ import annotations

from typing import Any

from images.bench import page
from tests.images.bench.test_page import entry
from tests.support.bench import LOAD


def run(executor: str, seconds: float, *, work: float = 8.0, empty: float = 0.0, busy: float = 0.01) -> dict[str, Any]:
    load = {**LOAD, "busy": busy}
    return {"executor": executor, "seconds": seconds, "work": work, "empty": empty, "load": load}


def tables(*runs: dict[str, Any]) -> str:
    return page.tables({"overhead": entry({"jobs": 8, "runs": [*runs]})}, "")  # type: ignore[dict-item]


def test_what_is_ours_is_neither_the_trials_nor_what_the_executor_takes_for_nothing() -> None:
    text = tables(run("local", 10.0), run("slurm", 24.8, empty=8.0), run("slurm", 24.0, empty=8.0))
    assert "| `local` | **10.0** | 10.0 | one run | 8.0 | 0.0 | **2.0** | 2.0 | one run | 0.25 | 5 s | 1% |" in text
    assert (
        "| `slurm` | **24.4** | 24.8, 24.0 | 3% | 8.0 | 8.0 | **8.4** | 8.8, 8.0 | 10% | 1.05 | 21 s | 1%, 1% |" in text
    )


def test_images_over_a_whole_one_are_a_part_of_their_own() -> None:
    data = {"jobs": 8, "over": "cu126-torch27", "runs": [run("slurm", 124.0, work=112.0, empty=8.0)]}
    text = page.tables({"overhead-whole": entry(data)}, "")  # type: ignore[dict-item]
    assert "### Executors: 8 images over cu126-torch27, judged one at a time" in text
    assert "| `fleet run --on slurm` beside `--on local`, trials of 14.0 s | <= 5% of them | 4% | met |" in text


def test_each_executor_is_judged_by_what_it_costs_more_than_one_machine() -> None:
    text = tables(run("local", 10.0), run("slurm", 19.0, empty=8.0), run("ray", 10.3))
    assert "`fleet run --on local` beside" not in text
    assert "| `fleet run --on slurm` beside `--on local`, trials of 1.0 s | <= 5% of them | 12% | **missed** |" in text
    assert "| `fleet run --on ray` beside `--on local`, trials of 1.0 s | <= 5% of them | 4% | met |" in text


def test_nothing_is_judged_where_others_used_the_machine() -> None:
    text = tables(run("ray", 8.1, busy=0.3))
    assert "| 1% | (machine busy: undecided) |" in text
