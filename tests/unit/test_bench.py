"""The pure parts of the benchmark: statistics, synthetic matrices, counting of layers, marks in contexts, the page."""

import dataclasses
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images import generate, lock, matrix, plan
from images.bench import accounting, page, parts, results, sides, stats, synthetic, workbench
from images.bench.accounting import Layer
from images.bench.sides import Kitchen
from images.commands import bench as verb
from images.engine import CacheRecord, Engine, ignore
from images.errors import UserError
from images.hosting import HostSettings
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
    [
        ((0.7, 1.1, 1.6), True),
        ((0.7, 1.1, 2.4), False),
        ((5.0, 50.0, 450.0), False),
        ((0.7, 0.72, 2.4), None),
        ((0.7, 1.1, 1.12), None),
    ],
)
def test_growth_is_judged_by_steps_that_are_larger_than_what_runs_differ_by(
    costs: tuple[float, ...], linear: bool | None
) -> None:
    runs = [(cost, cost + 0.05, cost + 0.02) for cost in costs]
    assert stats.grows_linearly((1_000, 5_000, 10_000), runs) is linear


def test_growth_is_that_of_the_least_each_count_took() -> None:
    runs = [(0.7, 0.8), (1.1, 1.3), (1.6, 2.0)]
    assert stats.steps((1_000, 5_000, 10_000), runs) == pytest.approx([0.0001, 0.0001])
    assert stats.grows_linearly((1_000, 5_000, 10_000), runs) is True


def test_one_run_says_nothing_of_growth() -> None:
    assert stats.grows_linearly((1_000, 5_000, 10_000), [(0.7,), (1.1,), (1.6,)]) is None


def test_two_points_say_nothing_of_growth() -> None:
    with pytest.raises(ValueError, match="always straight"):
        stats.grows_linearly((1, 2), [(1.0, 1.0), (2.0, 2.0)])


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
    assert len({image.image.lock_name for image in made if image.image}) == len(made)


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


def test_an_image_that_nothing_stands_on_any_more_is_forgotten_a_layer_at_a_time() -> None:
    def record(name: str, *parents: str, made_by: str = "from local ") -> CacheRecord:
        return CacheRecord(id=name, parents=parents, made_by=made_by, size=0)

    below, above = record("below", "base"), record("above", "below")
    others = (record("base"), record("context", made_by="http url http://build-context"), record("used"))
    step = record("step", "used", made_by="mount / from exec sh")
    before = frozenset({"base"})
    assert sides.left_ground((*others, step, below, above), before) == [above]
    assert sides.left_ground((*others, step, below), before) == [below]
    assert sides.left_ground((*others, step), before) == []


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


def test_pip_is_in_the_part_of_the_conventional_image_that_is_at_hand() -> None:
    (planned,) = plan.select(["cu130-torch211"], SOURCES)
    assert planned.image is not None
    dockerfile = sides.conventional_context(planned.image, lock.read(planned.image), "base:1", {})["Dockerfile"]
    assert isinstance(dockerfile, bytes)
    system, _, rest = dockerfile.decode().partition("\nFROM system\n")
    assert "pip install --no-cache-dir pip==" in system and "requirements.txt" not in system
    assert rest.count("RUN") == 1 and "-r requirements.txt" in rest


def test_an_image_is_another_on_another_base_though_its_context_is_the_same() -> None:
    context = {"Dockerfile": b"FROM base:1\n", "suite/claims.json": b"[]", "host/env": b"one"}
    made_from = parts.digest(context, "sha256:a")
    assert parts.digest({**context, "host/env": b"two"}, "sha256:a") == made_from
    assert parts.digest(context, "sha256:b") != made_from
    assert parts.digest({**context, "suite/claims.json": b"[{}]"}, "sha256:a") != made_from


class Cache:
    """An engine that remembers builds: each adds a record, as builds of somebody else do."""

    def __init__(self) -> None:
        self.records = {"old": "mount / from exec old"}
        self.asked: list[tuple[Mapping[str, Any], bool]] = []

    def build(self, files: Mapping[str, Any], tag: str | None, *, no_cache: bool, **_: object) -> SimpleNamespace:
        self.asked.append((files, no_cache))
        step = next(line for line in files["Dockerfile"].decode().splitlines() if "sh /run" in line)
        self.records |= {"ours": f"mount / from exec {step}", "theirs": "mount / from exec theirs"}
        return SimpleNamespace(image_id="sha256:1")

    def build_cache(self) -> tuple[CacheRecord, ...]:
        return tuple(CacheRecord(id=key, parents=(), made_by=made_by, size=1) for key, made_by in self.records.items())

    def forget(self, record: CacheRecord) -> None:
        del self.records[record.id]

    def untag(self, name: str) -> None:
        """There are no images."""

    def kitchen(self) -> Kitchen:
        return Kitchen(self, HostSettings(), "WORD", ignore)  # type: ignore[arg-type]


STEP = {
    "Dockerfile": b"FROM base\nRUN --mount=type=cache,id=truetag-uv,target=/run/uv \\\n    sh /run/scripts/step.sh\n"
}


def test_what_others_build_meanwhile_stays_where_our_steps_are_marked() -> None:
    cache = Cache()
    with cache.kitchen().nothing_new_kept():
        cache.kitchen().build(STEP, "WORD", anew=True)
    assert set(cache.records) == {"old", "theirs"}
    unmarked = Cache()
    with unmarked.kitchen().nothing_at_all_kept():
        unmarked.kitchen().build(STEP, "WORD", marked=False)
    assert set(unmarked.records) == {"old"}, "nobody knows whose a record is: the docs say so"


def test_an_image_that_is_built_anew_takes_wheels_and_no_step_from_the_cache() -> None:
    cache = Cache()
    cache.kitchen().build(STEP, "WORD", anew=True)
    ((files, no_cache),) = cache.asked
    assert no_cache and b"id=truetag-uv" in files["Dockerfile"] and b": WORD && sh" in files["Dockerfile"]


@pytest.mark.parametrize(("weigh", "no_cache"), [(parts._weigh_anew, True), (parts._weigh_as_built, False)])
def test_images_of_the_sequence_are_built_anew_and_those_to_pull_as_builds_make_them(
    monkeypatch: pytest.MonkeyPatch, weigh: Any, no_cache: bool
) -> None:
    cache = Cache()
    monkeypatch.setattr(parts, "_not_weighed", lambda *_: "made from")
    monkeypatch.setattr(parts, "_weigh", lambda *_: None)
    weigh(None, cache.kitchen(), "one", STEP, "base:1", {})
    assert [asked for _, asked in cache.asked] == [no_cache]


def appears(after: int) -> Engine:
    """An engine that has an image from the `after`th question on."""
    asked = iter(range(after))
    return SimpleNamespace(  # type: ignore[return-value]
        find=lambda _name: None if next(asked, None) is not None else "image", untag=lambda _name: None
    )


def test_the_first_moment_of_a_candidate_is_seen() -> None:
    with parts.watched(appears(1), "one-candidate") as seen:
        for _ in range(100):
            if not seen:
                parts.time.sleep(0.05)
    assert 0.15 < seen[0] < 2


def test_a_candidate_that_nobody_saw_has_no_time() -> None:
    with pytest.raises(UserError, match="never seen"), parts.watched(appears(1000), "one-candidate"):
        pass


@pytest.mark.parametrize(("changes", "gone"), [(True, ["old"]), (False, [])])
def test_an_image_that_lost_its_name_to_the_next_build_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: bool, gone: list[str]
) -> None:
    (planned,) = plan.select(["cu130-torch211"], SOURCES)
    assert planned.image is not None
    tags, removed = {"old": (planned.name,)}, list[str]()

    def find(wanted: str) -> SimpleNamespace | None:
        found = [key for key, names in tags.items() if wanted == key or wanted in names]
        return SimpleNamespace(id=found[0], tags=tags[found[0]]) if found else None

    def run(*_: object) -> None:
        if changes:
            tags.update(old=(), new=(planned.name,))

    bench = workbench.Workbench(tmp_path, SimpleNamespace(find=find, remove=removed.append), tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(workbench.Workbench, "run", lambda _self, *arguments: run(*arguments))
    bench.build(planned.image)
    assert removed == gone


# --- the file of results ------------------------------------------------------------------------------------------


def test_results_are_merged_part_by_part(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results.json"
    results.keep(file, "plan", {"data": {"a": 1}})
    results.keep(file, "cold", {"data": {}})
    results.keep(file, "plan", {"data": {"a": 2}})
    assert results.read(file) == {"plan": {"data": {"a": 2}}, "cold": {"data": {}}}
    assert [path.name for path in file.parent.iterdir()] == ["results.json"]


ON = results.Machine(**MACHINE)  # type: ignore[arg-type]


def left_by(commit: str, *, on: results.Machine = ON, finished: bool = False) -> dict[str, Any]:
    data = {"images": {"one": {}}, "weighed": {"a": layer("a", 5).as_json()}}
    return results.entry(data, on, commit, began="2026-01-02T03:04+00:00", seconds=5, finished=finished)


def test_an_interrupted_run_goes_on_at_the_same_commit_machine_and_engine_alone() -> None:
    assert results.unfinished(left_by("c1"), ON, "c1")["data"]["images"] == {"one": {}}
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

    def part(it: parts.Bench) -> dict[str, Any]:
        got.append((dict(it.so_far), [one.digest for one in it.weighed]))
        it.keep({"images": {}})
        got.append(results.read(file)["pull"]["finished"])
        return {"images": {}}

    monkeypatch.setitem(parts.PARTS, "pull", part)  # type: ignore[arg-type]
    bench = parts.Bench(
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


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99, "parts": {}}', '{"format": 1, "parts": {}}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(UserError, match="holds no results"):
        results.read(file)


# --- the page -----------------------------------------------------------------------------------------------------


def entry(data: dict[str, object], finished: bool = True) -> dict[str, object]:
    return results.entry(data, ON, "c" * 40, began="2026-01-02T03:04+00:00", seconds=9, finished=finished)


def cold(ours: float, busy: float = 0.01, pulled: float = 0, side: str = "ours") -> dict[str, object]:
    seconds = {"floor": 20.0, "ours": ours, "conventional": 100.0}
    runs = [
        {"side": one, "seconds": value, "load": {**LOAD, "busy": busy if one == side else 0.01}, "steps": []}
        for one, value in seconds.items()
    ]
    pulls = [{"seconds": pulled, "load": LOAD, "bytes": 1_500e6, "layers": 2}] if pulled else []
    return entry({"image": "i", "packages": 70, "host_peak": 90e6, "runs": runs, "base_pulls": pulls})


def rebuilt(seconds: float, layers: int = 1) -> dict[str, object]:
    ours = {"side": "ours", "seconds": seconds, "in_engine": 4.0, "proven": 31.0, "peak": 90e6, "load": LOAD}
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
    assert "| cold build beside the floor | <= 1.25 x | 1.20 x | met |" in good
    assert "| cold build beside the floor | <= 1.25 x | 3.00 x | **missed** |" in bad
    assert "| cold build beside conventional | >= 2 x faster | 1.7 x | **missed** |" in bad


def test_no_ratio_is_a_verdict_where_others_used_the_machine() -> None:
    text = page.tables({"cold": cold(24.0, busy=0.11, side="floor")}, "")
    assert "| cold build beside the floor | <= 1.25 x | 1.20 x | (machine busy: undecided) |" in text
    assert "| cold build beside conventional | >= 2 x faster | 4.2 x | met |" in text


def test_the_pull_of_a_base_is_a_row_beside_the_strict_one() -> None:
    text = page.tables({"cold": cold(60.0, pulled=40.0)}, "")
    assert "| cold build beside conventional | >= 2 x faster | 1.7 x | **missed** |" in text
    assert "| the same, with the pull of conventional's base | >= 2 x faster | 2.3 x | met |" in text
    assert "| pull of its base, registry on this machine: 1,500 MB, 2 layers | **40.0** |" in text
    assert "pull of" not in page.tables({"cold": cold(60.0)}, "")


def test_a_rebuild_is_judged_to_the_candidate_and_tells_when_it_was_proven() -> None:
    text = page.tables({"rebuild": rebuilt(7.5)}, "")
    assert "| small pin moved: command to candidate | <= 8 s | 7.5 s (proven: 31.0 s) | met |" in text
    assert "| conventional, in the engine | **60.0** | 60.0 | one run | 3 |" in text
    assert "| small pin moved: command to candidate | <= 8 s | 9.0 s" in page.tables({"rebuild": rebuilt(9.0)}, "")
    assert "| layers changed by it | 1 | 2 | **missed** |" in page.tables({"rebuild": rebuilt(7.5, layers=2)}, "")


def test_growth_is_undecided_where_runs_differ_by_more_than_a_step() -> None:
    straight = page.tables({"plan": planned_in((0.6, 0.9), (0.7, 0.72), (1.1, 1.12), (1.6, 1.64))}, "")
    assert "| its growth | linear | 0.10 ms an image, then 0.10 ms an image | met |" in straight
    noisy = page.tables({"plan": planned_in((0.6, 0.6), (0.7, 1.2), (1.1, 1.12), (1.6, 1.64))}, "")
    assert "| undecided: runs differ by more than a step |" in noisy


def test_an_interrupted_run_is_told_as_one_and_judged_by_nothing() -> None:
    images = {label: {"bytes": 1, "layers": [label]} for label in ("one arch", "conventional")}
    data = {"images": images, "weighed": {label: layer(label, 9).as_json() for label in images}}
    text = page.tables({"pull": entry(data, finished=False)}, "")
    assert "Interrupted" in text and "Goals" not in text
    assert "Goals" in page.tables({"pull": entry(data)}, "")


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
