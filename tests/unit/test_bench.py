"""The pure parts of the benchmark: statistics, synthetic matrices, counting of layers, marks in contexts, the page."""

import dataclasses
import json
from pathlib import Path

import pytest

from images import generate, lock, matrix, plan
from images.bench import accounting, page, results, sides, stats, synthetic
from images.bench.accounting import Layer
from images.engine import CacheRecord
from images.errors import UserError
from images.matrix import ROOT

SOURCES = matrix.load()
MACHINE = {"processor": "p", "cores": 2, "memory": 2**34, "engine": "20.10", "storage": "overlay2", "python": "3.11"}
LOAD = {"before": 0.1, "after": 0.2, "busy": 0.01}


def layer(digest: str, gzip: int) -> Layer:
    return Layer(digest=digest, tar=gzip * 3, gzip=gzip, zstd=gzip - 1)


# --- statistics ---------------------------------------------------------------------------------------------------


def test_a_median_needs_values_and_a_spread_is_a_part_of_it() -> None:
    assert stats.middle([9.0, 1.0, 2.0]) == 2.0
    assert stats.spread([8.0, 10.0, 12.0]) == pytest.approx(0.4)
    assert stats.spread([3.0]) == 0
    with pytest.raises(ValueError, match="nothing was measured"):
        stats.middle([])


@pytest.mark.parametrize(
    ("costs", "linear"),
    [((0.6, 0.7, 1.7), True), ((0.6, 0.8, 2.6), True), ((0.6, 0.7, 9.0), False), ((0.5, 5.0, 450.0), False)],
)
def test_growth_is_judged_by_steps_so_that_a_fixed_cost_hides_nothing(costs: tuple[float, ...], linear: bool) -> None:
    assert stats.grows_linearly((100, 1_000, 10_000), costs) is linear


def test_two_points_say_nothing_of_growth() -> None:
    with pytest.raises(ValueError, match="always straight"):
        stats.grows_linearly((1, 2), (1.0, 2.0))


def test_every_side_goes_first_in_turn() -> None:
    assert stats.turns(["a", "b", "c"], 4) == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


# --- layers -------------------------------------------------------------------------------------------------------


def test_a_layer_that_is_held_is_not_fetched_again() -> None:
    base, torch, light, other = layer("base", 50), layer("torch", 2000), layer("light", 1), layer("other", 3)
    weights = accounting.fetched([[base, torch, light], [base, torch, other], [base, torch, light]])
    assert [weight.gzip for weight in weights] == [2051, 3, 0]
    assert [weight.layers for weight in weights] == [3, 1, 0]


def test_a_layer_that_stands_twice_is_counted_once() -> None:
    assert accounting.weight([layer("a", 5), layer("a", 5), layer("b", 2)]).gzip == 7


def test_what_a_rebuild_changed() -> None:
    assert accounting.changed(["a", "b", "c"], ["a", "x", "c"]) == ("x",)
    assert accounting.changed(["a"], ["a"]) == ()


def test_a_layer_survives_its_file() -> None:
    one = layer("sha256:1", 7)
    assert Layer.from_json(json.loads(json.dumps(one.as_json()))) == one


# --- synthetic matrices -------------------------------------------------------------------------------------------


def test_a_synthetic_matrix_is_sound_accepted_and_as_large_as_asked(tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(synthetic.text(SOURCES, 300))
    planned = plan.check(matrix.load(file))
    made = planned[len(SOURCES.matrix.images) :]
    assert len(planned) == len({image.name for image in planned}) == 300
    assert all(image.accepted for image in made)


def test_the_same_count_gives_the_same_matrix_and_keeps_the_order_of_layers(tmp_path: Path) -> None:
    assert synthetic.text(SOURCES, 60) == synthetic.text(SOURCES, 60)
    file = tmp_path / "matrix.yaml"
    file.write_text(synthetic.text(SOURCES, 60))
    assert list(matrix.load(file).matrix.layers) == list(SOURCES.matrix.layers)


def test_a_synthetic_lock_counts_as_present(tmp_path: Path) -> None:
    images = [image.image for image in plan.plan(SOURCES) if image.image][:3]
    lock.write(dict(synthetic.locks(images)), tmp_path)
    assert set(lock.states(images, tmp_path).values()) == {lock.Status.PRESENT}


def test_a_shared_lock_counts_for_each_image_by_what_it_asks(tmp_path: Path) -> None:
    parent, arch = (plan.select([name], SOURCES)[0].image for name in ("cu126-torch27", "cu126-torch27-sm90"))
    assert parent is not None and arch is not None
    lock.write(dict(synthetic.locks([parent])), tmp_path)
    moved = dataclasses.replace(arch, pins=arch.pins[1:])
    assert lock.states([parent, arch], tmp_path)["cu126-torch27-sm90"] is lock.Status.PRESENT
    assert lock.states([parent, moved], tmp_path)["cu126-torch27-sm90"] is lock.Status.STALE


def test_fewer_images_than_the_project_has_are_refused() -> None:
    with pytest.raises(ValueError, match="the project itself has"):
        synthetic.text(SOURCES, 3)


# --- contexts and traces ------------------------------------------------------------------------------------------


def test_every_step_of_a_golden_dockerfile_bears_the_word_or_stands_on_one_that_does() -> None:
    text = (ROOT / "tests" / "golden" / "cu126-torch25.Dockerfile").read_bytes()
    marked = sides.marked_with({"Dockerfile": text}, "WORD", own_cache=True)["Dockerfile"]
    assert isinstance(marked, bytes)
    steps = marked.decode().split("\nRUN ")[1:]
    assert all("WORD" in step or "cp -a" in step for step in steps)
    assert b"id=truetag-uv" not in marked and b"id=WORD" in marked


def test_a_warm_build_keeps_the_cache_of_wheels() -> None:
    text = (ROOT / "tests" / "golden" / "cu126-torch25.Dockerfile").read_bytes()
    marked = sides.marked_with({"Dockerfile": text}, "WORD", own_cache=False)["Dockerfile"]
    assert isinstance(marked, bytes) and b"id=truetag-uv" in marked


def test_traces_are_what_bears_the_word_and_all_above_it_topmost_first() -> None:
    def record(name: str, *parents: str, made_by: str = "mount / from exec") -> CacheRecord:
        return CacheRecord(id=name, parents=parents, made_by=made_by, size=1)

    records = (
        record("copy", "install"),
        record("install", "system", made_by="mount / from exec : WORD && sh install"),
        record("system"),
        record("top", "copy"),
        record("wheels", made_by="cached mount /run/uv from exec : WORD && sh install"),
        record("theirs", "system"),
    )
    assert [one.id for one in sides.traces(records, "WORD")] == ["top", "copy", "install", "wheels"]
    assert sides.traces(records, "ANOTHER") == []


def test_the_conventional_side_holds_every_package_of_ours_at_the_same_version() -> None:
    (planned,) = plan.select(["cu130-torch211"], SOURCES)
    assert planned.image is not None
    locked = lock.read(planned.image)
    context = sides.conventional_context(planned.image, locked, "base:1", {"host/env": b""})
    requirements = context["requirements.txt"]
    assert isinstance(requirements, bytes)
    lines = requirements.decode().splitlines()
    ours = locked.versions(planned.image.layers)
    assert {f"{name}=={version}" for name, version in ours.items()} == {
        line for line in lines if not line.startswith("#")
    }


# --- the file of results ------------------------------------------------------------------------------------------


def test_results_are_merged_part_by_part(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results.json"
    results.keep(file, "plan", {"data": {"a": 1}})
    results.keep(file, "cold", {"data": {}})
    results.keep(file, "plan", {"data": {"a": 2}})
    assert results.read(file) == {"plan": {"data": {"a": 2}}, "cold": {"data": {}}}
    assert [path.name for path in file.parent.iterdir()] == ["results.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99, "parts": {}}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(UserError, match="holds no results"):
        results.read(file)


# --- the page -----------------------------------------------------------------------------------------------------


def entry(data: dict[str, object]) -> dict[str, object]:
    return {"date": "2026-01-02T03:04+00:00", "commit": "c" * 40, "machine": MACHINE, "took": 9, "data": data}


def cold(ours: float, busy: float = 0.01) -> dict[str, object]:
    load = {**LOAD, "busy": busy}
    seconds = {"floor": 20.0, "ours": ours, "conventional": 100.0}
    runs = [{"side": side, "seconds": value, "load": load, "steps": []} for side, value in seconds.items()]
    return entry({"image": "i", "packages": 70, "host_peak": 90e6, "runs": runs})


def test_goals_are_met_or_missed_by_the_numbers_alone() -> None:
    good, bad = (page.tables({"cold": cold(ours)}, "") for ours in (24.0, 60.0))
    assert "| cold build beside the floor | <= 1.25 x | 1.20 x | met |" in good
    assert "| cold build beside the floor | <= 1.25 x | 3.00 x | **missed** |" in bad
    assert "| cold build beside conventional | >= 2 x faster | 1.7 x | **missed** |" in bad


def test_bytes_are_set_beside_the_conventional_image() -> None:
    weighs = {"all archs": 100, "one arch": 80, "conventional": 100}
    images = {label: {"bytes": 1, "layers": [label]} for label in weighs}
    weighed = {label: layer(label, gzip).as_json() for label, gzip in weighs.items()}
    text = page.tables({"pull": entry({"images": images, "weighed": weighed})}, "")
    assert "| gzip bytes, one arch | <= 0.75 x conventional | 0.80 x | **missed** |" in text
    assert "NVIDIA's sliced" not in text


def test_a_busy_machine_is_said() -> None:
    assert "busy" not in page.tables({"cold": cold(24.0)}, "")
    assert "The machine was busy" in page.tables({"cold": cold(24.0, busy=0.4)}, "")


def test_nothing_is_said_of_what_was_not_measured() -> None:
    assert page.tables({}, "").strip() == ""


def test_the_gpu_tier_is_told_as_of_another_machine() -> None:
    text = page.tables({}, (ROOT / "results" / "README.md").read_text())
    assert "measured on another machine" in text and "H100" in text


def test_the_page_in_the_docs_is_current() -> None:
    path = "docs/benchmarks.md"
    assert generate.files(SOURCES)[path] == (ROOT / path).read_bytes()
