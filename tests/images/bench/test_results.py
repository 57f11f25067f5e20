"""The file of results."""

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from images.bench import results
from images.bench.parts import PARTS, BenchmarkRun
from images.commands import bench as verb
from images.commands import common
from images.context.hosting import HostSettings
from images.errors import UserError
from tests.support.bench import ON, SOURCES, left_by
from tests.support.checkout import ROOT


def test_results_are_merged_part_by_part(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results.json"
    results.keep(file, "plan", {"data": {"a": 1}})
    results.keep(file, "cold", {"data": {}})
    results.keep(file, "plan", {"data": {"a": 2}})
    assert results.read(file) == {"plan": {"data": {"a": 2}}, "cold": {"data": {}}}
    assert [path.name for path in file.parent.iterdir()] == ["results.json"]


def test_an_interrupted_run_goes_on_at_the_same_commit_machine_and_engine_alone() -> None:
    going_on = results.unfinished(left_by("c1"), ON, "c1")
    assert going_on is not None and going_on["data"]["images"] == {"one": {}}
    newer = dataclasses.replace(ON, engine="28.0")
    assert not results.unfinished(left_by("c1"), ON, "c2")
    assert not results.unfinished(left_by("c1", on=newer), ON, "c1")
    assert not results.unfinished(left_by("c1", finished=True), ON, "c1")
    assert not results.unfinished(left_by("c1-dirty"), ON, "c1-dirty")
    assert not results.unfinished(left_by(""), ON, "")
    assert not results.unfinished(None, ON, "c1")


@pytest.mark.parametrize(("commit", "goes_on"), [("c1", True), ("c2", False)])
def test_values_keep_the_date_of_their_run_and_layers_are_known_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str, goes_on: bool
) -> None:
    file, got = tmp_path / "results.json", []
    results.keep(file, "pull", left_by("c1"))
    monkeypatch.setattr(results, "machine", lambda _engine: ON)
    monkeypatch.setattr(results, "revision", lambda: commit)

    def part(bench: BenchmarkRun) -> dict[str, Any]:
        got.append((dict(bench.so_far), [one.digest for one in bench.known_layers]))
        bench.keep({"images": {}})
        got.append(results.read(file)["pull"]["finished"])
        return {"images": {}}

    monkeypatch.setitem(PARTS, "pull", part)  # type: ignore[arg-type]
    bench = BenchmarkRun(
        engine=None,  # type: ignore[arg-type]
        host=HostSettings(),
        sources=SOURCES,
        progress=None,  # type: ignore[arg-type]
        repeat=1,
    )
    verb._measure(bench, "pull", file)
    kept = results.read(file)["pull"]
    assert got == [(left_by("c1")["data"] if goes_on else {}, ["a"]), False]
    assert kept["finished"] and (kept["date"] == "2026-01-02T03:04+00:00") is goes_on
    assert kept["commit"] == commit


def test_results_alone_make_no_checkout_dirty(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    assert results.revision(tmp_path) == ""
    for path in ("results/bench/results.json", "code.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    clean = results.revision(tmp_path)
    (tmp_path / "results/bench/results.json").write_text("2")
    assert len(clean) == 10 and results.revision(tmp_path) == clean
    (tmp_path / "code.py").write_text("2")
    assert results.revision(tmp_path) == f"{clean}-dirty"


def test_without_git_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert results.revision(ROOT) == "" and common.commit() == ""


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 3}', '{"format": "3", "parts": {}}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(UserError, match="holds no results"):
        results.read(file)


@pytest.mark.parametrize(("written", "then"), [(2, "measures everything once more"), (99, "`git pull`")])
def test_results_of_another_format_are_told_as_such(tmp_path: Path, written: int, then: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"format": written, "parts": {}}))
    with pytest.raises(UserError, match=f"holds results in format {written}, not in format 3") as told:
        results.read(file)
    assert then in str(told.value)
