"""Results as tables, and the figure."""

from typing import Any

from benchmarks import page
from tests.support.checkout import ROOT
from tests.support.sources import SOURCES
from tools import generate

LOAD = {"before": 0.1, "after": 0.2, "busy": 0.01}
ON = {"processor": "p", "cores": 2, "memory": 2**34, "engine": "20.10", "storage": "overlay2", "python": "3.11"}


def tables(part: str, data: dict[str, object]) -> str:
    return page.tables({part: {"date": "2026-01-02T03:04+00:00", "commit": "c", "machine": ON, "data": data}})


def cold(ours: float, busy: float = 0.01) -> dict[str, object]:
    seconds = {"lower bound": 20.0, "ours": ours, "conventional": 100.0}
    steps = [{"name": "[torch 1/1] RUN : truetag-bench-0a && --mount=type=cache sh x", "seconds": 7.0}]
    runs = [
        {"side": one, "seconds": value, "load": {**LOAD, "busy": busy}, "steps": steps}
        for one, value in seconds.items()
    ]
    return {"image": "i", "packages": 70, "runs": runs}


def run(side: str, compression: str, seconds: float, **other: Any) -> dict[str, Any]:
    told = {"engine": "26.1.5", "link": "loopback", "bytes": 3e9, "load": LOAD}
    steps = {"imported": 4.0, "stepped": 6.0}
    return {"side": side, "compression": compression, "seconds": seconds, **told, **steps, **other}


CONVENTIONAL = run("conventional", "gzip", 50)


def test_a_busy_machine_is_said() -> None:
    assert "busy" not in tables("cold", cold(24.0))
    assert "The machine was busy" in tables("cold", cold(24.0, busy=0.4))


def test_ratios_are_of_one_engine_and_link() -> None:
    slow = [run("conventional", "gzip", 50, link="1 Gb/s"), run("all archs", "zstd", 25, link="1 Gb/s")]
    other = run("x", "zstd", 9, engine="9")
    runs = [CONVENTIONAL, run("all archs", "zstd", 10), *slow, other]
    text = tables("delivery", {"image": "i", "pushes": [], "runs": runs, "blocked": []})
    assert "| all archs | zstd | 3,000 | **10.0** | 10.0 | 0.20 | 6.0 | **16.0** | 0.29 | 1% |" in text
    assert "| all archs | zstd | 3,000 | **25.0** | 25.0 | 0.50 |" in text
    assert "| x | zstd | 3,000 | **9.0** | 9.0 |  | 6.0 |" in text


def test_the_page_and_its_figure_in_the_docs_are_current() -> None:
    made = generate.files(SOURCES)
    for path in ("docs/benchmarks.md", page.CHART):
        assert made[path] == (ROOT / path).read_bytes()
