"""The pure parts of the benchmark: statistics, synthetic matrices, counting of layers, marks in contexts, the page."""

import dataclasses
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bcrypt
import pytest

from images.bench import accounting, loopback, page, parts, results, sides, stats, synthetic, workbench
from images.bench.accounting import Layer
from images.bench.sides import Kitchen
from images.building import uncached
from images.commands import bench as verb
from images.commands import common
from images.config import matrix
from images.config.matrix import ROOT
from images.context.hosting import HostSettings
from images.engine import BuildSpec, CacheRecord, Engine, HistoryEntry, ignore, registries
from images.errors import Problem, UserError
from images.locking import lock_file
from images.maintenance import generate
from images.planning import plan
from images.registry.distribution import Descriptor, Manifest

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
    lock_file.write(dict(synthetic.locks(images)), tmp_path)
    assert set(lock_file.states(images, tmp_path).values()) == {lock_file.Status.PRESENT}


def test_a_shared_lock_counts_for_each_image_by_what_it_asks(tmp_path: Path) -> None:
    parent, arch = (plan.select([name], SOURCES)[0].image for name in ("cu126-torch27", "cu126-torch27-sm90"))
    assert parent is not None and arch is not None
    lock_file.write(dict(synthetic.locks([parent])), tmp_path)
    moved = dataclasses.replace(arch, pins=arch.pins[1:])
    assert lock_file.states([parent, arch], tmp_path)["cu126-torch27-sm90"] is lock_file.Status.PRESENT
    assert lock_file.states([parent, moved], tmp_path)["cu126-torch27-sm90"] is lock_file.Status.STALE


def test_fewer_images_than_the_project_has_are_refused() -> None:
    with pytest.raises(ValueError, match="the project itself has"):
        synthetic.text(SOURCES, 3)


# --- contexts and traces ------------------------------------------------------------------------------------------


def test_every_step_of_a_golden_dockerfile_bears_the_word_or_stands_on_one_that_does() -> None:
    text = (ROOT / "tests" / "golden" / "cu126-torch25.Dockerfile").read_bytes()
    marked = sides.marked_with({"Dockerfile": text}, "WORD")["Dockerfile"]
    assert isinstance(marked, bytes)
    steps = marked.decode().split("\nRUN ")[1:]
    assert all("WORD" in step or "cp -a" in step for step in steps)
    assert marked.count(b"id=truetag-uv,") == text.count(b"id=truetag-uv,")


def test_a_cold_build_alone_has_a_cache_of_wheels_of_its_own() -> None:
    cache = Cache()
    for options in ({"cold": True}, {"anew": True}, {}):
        cache.kitchen().build(STEP, "WORD", **options)
    wheels = [b"id=truetag-uv," not in files["Dockerfile"] for files, _ in cache.asked]
    assert wheels == [True, False, False] and b"id=truetag-uv-WORD," in cache.asked[0][0]["Dockerfile"]


def test_traces_are_what_bears_the_word_and_all_above_it() -> None:
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
    found = sides.traces(records, "WORD")
    assert {one.id for one in found} == {"top", "copy", "install", "wheels"}
    order = [one.id for one in uncached.topmost_first(found)]
    assert order.index("top") < order.index("copy") < order.index("install")
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
    locked = lock_file.read(planned.image)
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
    dockerfile = sides.conventional_context(planned.image, lock_file.read(planned.image), "base:1", {})["Dockerfile"]
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
        self.parents: dict[str, str] = {}
        self.asked: list[tuple[Mapping[str, Any], bool]] = []

    def build(self, files: Mapping[str, Any], tag: str | None, spec: BuildSpec, **_: object) -> SimpleNamespace:
        self.asked.append((files, spec.no_cache))
        step = next(line for line in files["Dockerfile"].decode().splitlines() if "sh /run" in line)
        self.records |= {"ours": f"mount / from exec {step}", "theirs": "mount / from exec theirs"}
        return SimpleNamespace(image_id="sha256:1")

    def build_cache(self) -> tuple[CacheRecord, ...]:
        return tuple(
            CacheRecord(id=key, parents=(self.parents[key],) if key in self.parents else (), made_by=made_by, size=1)
            for key, made_by in self.records.items()
        )

    def forget(self, record: CacheRecord) -> None:
        if record.id not in {self.parents.get(key) for key in self.records}:
            del self.records[record.id]

    def inspect(self, reference: str) -> SimpleNamespace:
        below = ("sha256:base",)
        return SimpleNamespace(
            id=reference, layers=below if reference in ("base", "base:1") else (*below, "sha256:own", "sha256:x")
        )

    def history(self, _reference: str) -> tuple[HistoryEntry, ...]:
        return ()

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


def test_a_long_chain_of_steps_is_forgotten_to_its_lowest() -> None:
    cache = Cache()
    chain = [f"step {number}" for number in range(12)]
    with cache.kitchen().nothing_at_all_kept():
        cache.records |= dict.fromkeys(chain, "mount / from exec sh")
        cache.parents |= dict(zip(chain[1:], chain, strict=False))
    assert set(cache.records) == {"old"}


def test_an_image_that_is_built_anew_takes_wheels_and_no_step_from_the_cache() -> None:
    cache = Cache()
    cache.kitchen().build(STEP, "WORD", anew=True)
    ((files, no_cache),) = cache.asked
    assert no_cache and b"id=truetag-uv" in files["Dockerfile"] and b": WORD && sh" in files["Dockerfile"]


@pytest.mark.parametrize(("options", "apart"), [({"cold": True}, True), ({"anew": True}, True), ({}, False)])
def test_what_is_built_without_steps_from_the_cache_stands_on_a_layer_of_its_own(
    options: dict[str, bool], apart: bool
) -> None:
    cache = Cache()
    cache.kitchen().build(STEP, "WORD", **options)
    ((files, _),) = cache.asked
    assert files["Dockerfile"].startswith(b"FROM base\nRUN echo WORD >/again\n") is apart


class Shelf:
    """An engine whose image has real folders for layers: the base's, one of its own, and another."""

    facts = SimpleNamespace(local=True)

    def __init__(self, folder: Path) -> None:
        self.folders = {f"sha256:{name}": folder / name for name in ("base", "own", "torch")}
        for number, path in enumerate(self.folders.values(), 1):
            path.mkdir()
            (path / "file").write_bytes(bytes(1_000 * number))

    def inspect(self, reference: str) -> SimpleNamespace:
        layers = tuple(self.folders)
        return SimpleNamespace(id=reference, layers=layers[:1] if reference == "base:1" else layers, size=6_000)

    def layer_folders(self, _reference: str) -> tuple[Path, ...]:
        return tuple(self.folders.values())

    def history(self, _reference: str) -> tuple[HistoryEntry, ...]:
        made = {
            "RUN /bin/sh -c sh /run/scripts/install.sh": 3_000,
            "RUN /bin/sh -c echo WORD >/again # buildkit": 2_000,
        }
        return tuple(HistoryEntry(created_by=text, size=size, comment="") for text, size in made.items())

    def build(self, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(image_id="sha256:image")

    def build_cache(self) -> tuple[CacheRecord, ...]:
        return ()

    def untag(self, _name: str) -> None:
        """There are no names."""


def bench_on(engine: Any, **more: Any) -> tuple[parts.Bench, list[str]]:
    """A bench, and what it says."""
    said: list[str] = []
    progress: Any = SimpleNamespace(say=lambda _name, text: said.append(text))
    return parts.Bench(engine=engine, host=HostSettings(), sources=SOURCES, progress=progress, repeat=1, **more), said


@pytest.mark.parametrize(
    ("weigh", "layers", "size"),
    [(parts._weigh_anew, ["base", "torch"], 4_000), (parts._weigh_as_built, ["base", "own", "torch"], 6_000)],
)
def test_the_layer_that_an_image_stands_apart_on_is_in_no_figure(
    tmp_path: Path, weigh: Any, layers: list[str], size: int
) -> None:
    engine: Any = Shelf(tmp_path)
    kept: list[set[str]] = []
    it, _ = bench_on(engine, keep=lambda data: kept.append(set(data["weighed"])))
    found: dict[str, Any] = {}
    weigh(it, Kitchen(engine, HostSettings(), "WORD", ignore), "one", STEP, "base:1", found)
    named = [f"sha256:{name}" for name in layers]
    assert found["images"]["one"]["layers"] == named and found["images"]["one"]["bytes"] == size
    assert set(found["weighed"]) == set(named) == set.union(*kept), "an interrupted run kept it neither"


def test_the_image_that_the_command_line_builds_anew_stands_on_a_layer_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (planned,) = plan.select(["cu130-torch211"], SOURCES)
    assert planned.image is not None
    copied = workbench.Workbench(tmp_path, Cache(), tmp_path / "out")  # type: ignore[arg-type]
    copied.copy()
    script = tmp_path / "templates" / "scripts" / "user.sh"
    before = script.read_text()
    ran: list[tuple[str, str]] = []
    monkeypatch.setattr(
        workbench.Workbench, "build", lambda _self, _image, option: ran.append((option, script.read_text()))
    )
    parts._by_command(Cache().kitchen(), copied, planned.image)
    ((option, then),) = ran
    assert option == "--no-cache" and then.startswith(before)
    assert then.removeprefix(before) == "echo WORD >/etc/truetag-bench\n"
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0


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
    start = parts.time.monotonic()
    with parts.watched(appears(1), "one-candidate") as seen:
        for _ in range(1000):
            if not seen:
                parts.time.sleep(0.05)
    assert 0.15 < seen[0] < parts.time.monotonic() - start


def test_a_candidate_that_nobody_saw_has_no_time() -> None:
    with pytest.raises(UserError, match="never seen") as told, parts.watched(appears(1000), "one-candidate"):
        pass
    assert told.value.problems[0].then == "`nox -s bench -- --only rebuild` measures it again"


def test_what_the_engine_says_to_who_watches_for_a_candidate_is_told() -> None:
    asked = threading.Event()

    def find(_name: str) -> None:
        asked.set()
        raise UserError(Problem(where="engine", cause="went away"), code=1)

    engine: Any = SimpleNamespace(find=find, untag=lambda _name: None)
    with pytest.raises(UserError, match="engine: went away"), parts.watched(engine, "one-candidate"):
        assert asked.wait(60)


SIZES = {"a": 9, "b": 1}
BLOBS = [Descriptor(media_type="layer", digest=f"sha256:{first * 64}", size=size) for first, size in SIZES.items()]


def pulled(monkeypatch: pytest.MonkeyPatch, *messages: dict[str, Any]) -> dict[str, Any]:
    """Pull two layers from an engine that says these messages."""
    monkeypatch.setattr(parts, "_loaded", lambda: nullcontext({}))

    def pull(name: str, on_event: Callable[[Any], None]) -> None:
        for message in messages:
            if event := registries.transfer_event(name, "pulling", message):
                on_event(event)

    engine: Any = SimpleNamespace(facts=SimpleNamespace(url="unix:///e.sock"), untag=lambda _name: None, pull=pull)
    return parts._pulled(bench_on(engine)[0], "127.0.0.1:5/standin:1", BLOBS)


def test_a_pull_that_found_layers_here_says_how_to_let_go_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="1 of 2 layers did not come from the registry") as told:
        pulled(monkeypatch, {"status": "Already exists", "id": "a" * 12}, {"status": "Pull complete", "id": "b" * 12})
    then = told.value.problems[0].then
    assert "`docker -H unix:///e.sock builder prune --all`" in then and "`nox -s bench -- --only cold`" in then


def test_a_pull_that_brought_what_should_have_been_here_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [{"status": "Pull complete", "id": first * 12} for first in "abc"]
    with pytest.raises(UserError, match="1 layers came from the registry that the engine should have kept"):
        pulled(monkeypatch, *words)
    with pytest.raises(UserError, match="1 layers came from"):
        pulled(monkeypatch, *words[1:])


def test_an_image_that_is_a_list_in_the_registry_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest(media_type="application/vnd.oci.image.index.v1+json", content=b'{"manifests": []}')
    monkeypatch.setattr(parts.Registry, "get", lambda _self, _wanted: manifest)
    with pytest.raises(UserError, match="the engine pushed a list of images") as told:
        parts._blobs("127.0.0.1:5/standin:1", ["sha256:a"], [])
    assert "containerd image store" in told.value.problems[0].then


def test_a_layer_so_small_that_no_word_is_said_of_its_download_was_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen of engine 20.10 on a busy machine, in one of 60 pulls."""
    large = {"status": "Downloading", "id": "a" * 12, "progressDetail": {"current": 9, "total": 9}}
    last = [{"status": "Pull complete", "id": first * 12, "progressDetail": {}} for first in "ab"]
    found = pulled(monkeypatch, large, {"status": "Download complete", "id": "b" * 12, "progressDetail": {}}, *last)
    assert (found["layers"], found["bytes"]) == (2, 10)


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


# --- a registry on this machine ------------------------------------------------------------------------------------


def answer(host: str) -> int:
    """The status that a registry answers with."""
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.request("GET", "/v2/")
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_registry_with_a_login_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "htpasswd").write_text(f"one:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    login = {"htpasswd": {"realm": "tests", "path": str(tmp_path / "htpasswd")}}
    with loopback.registry(tmp_path / "open") as host:
        assert answer(host) == 200
    with loopback.registry(tmp_path / "closed", auth=login) as host:
        assert answer(host) == 401
    assert [path.name for path in tmp_path.iterdir()] == ["htpasswd"]


PROGRAM = """\
#!{python}
import http.server, json, sys
host, _, port = json.load(open(sys.argv[2]))["http"]["addr"].partition(":")
http.server.HTTPServer((host, int(port)), http.server.BaseHTTPRequestHandler).serve_forever()
"""
APT = """\
#!/bin/sh
echo "$*" >>{folder}/asked
case "$*" in
*update*) touch {folder}/lists ;;
*download*) [ -e {folder}/lists ] || {{ echo "E: Unable to locate package" >&2; exit 100; }}; cp {folder}/*.deb . ;;
*) exit 1 ;;
esac
"""


@pytest.fixture
def only_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without docker-registry, whose apt-get has never updated its lists: what it was asked is in `asked`."""
    programs = tmp_path / "programs"
    made = tmp_path / "made"
    for path, text in (
        (made / "DEBIAN" / "control", "Package: docker-registry\nVersion: 1\nArchitecture: all\nMaintainer: a\n"),
        (made / "usr" / "bin" / "docker-registry", PROGRAM.format(python=sys.executable)),
        (programs / "apt-get", APT.format(folder=tmp_path)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    deb = tmp_path / "docker-registry_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(made), str(deb)], check=True, capture_output=True)
    which = loopback.shutil.which
    monkeypatch.setattr(loopback.shutil, "which", lambda name: None if name == "docker-registry" else which(name))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path / "asked"


def test_where_there_is_no_registry_one_is_unpacked_and_none_installed(tmp_path: Path, only_apt: Path) -> None:
    said: list[str] = []
    with loopback.registry(tmp_path / "registry", say=said.append) as host:
        assert answer(host) == 501, "the program of the package that apt-get gave"
    assert "install" not in only_apt.read_text() and "download docker-registry" in only_apt.read_text()
    (told,) = said
    assert "docker-registry" in told and "nothing is installed" in told
    assert not (tmp_path / "registry").exists()


def test_a_registry_that_can_not_be_fetched_is_told_with_what_apt_said(tmp_path: Path, only_apt: Path) -> None:
    apt = tmp_path / "programs" / "apt-get"
    apt.write_text("#!/bin/sh\necho 'E: no such mirror' >&2\nexit 100\n")
    with pytest.raises(UserError, match="E: no such mirror") as told, loopback.registry(tmp_path / "registry"):
        pass
    assert "apt-get download docker-registry`" in told.value.problems[0].then
    assert not (tmp_path / "registry").exists()


def test_a_registry_that_does_not_start_says_why_and_what_to_do(tmp_path: Path, only_apt: Path) -> None:
    program = tmp_path / "made" / "usr" / "bin" / "docker-registry"
    program.write_text("#!/bin/sh\necho no room left >&2\nexit 3\n")
    deb = tmp_path / "docker-registry_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(tmp_path / "made"), str(deb)], check=True, capture_output=True)
    with pytest.raises(UserError) as told, loopback.registry(tmp_path / "registry"):
        pass
    (problem,) = told.value.problems
    assert problem.cause == "ended with 3 before it answered: no room left"
    assert "FILE" not in problem.then and "`nox -s bench -- --only cold`" in problem.then


def test_without_apt_a_person_is_told_to_bring_a_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(UserError, match="docker-registry: is not here") as told,
        loopback.registry(tmp_path / "registry"),
    ):
        pass
    assert "PATH" in told.value.problems[0].then


def fails(error: Exception) -> None:
    raise error


BROKEN: list[tuple[Callable[..., Any] | None, str]] = [
    (None, "the engine: is on another machine, and the registry on this one"),
    (
        lambda *_, **__: fails(UserError(Problem(where="apt-get", cause="no mirror", then="mend it"))),
        "apt-get: no mirror",
    ),
    (lambda *_, **__: fails(PermissionError(13, "Permission denied", "/place")), "/place: Permission denied"),
    (
        lambda *_, **__: fails(UserError(Problem(where="a", cause="http://me:word@host/ fails"))),
        "a: http://***@host/ fails",
    ),
]


@pytest.mark.parametrize(("registry", "reason"), BROKEN)
def test_why_the_pull_of_the_base_could_not_be_timed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Callable[..., Any] | None, reason: str
) -> None:
    engine = Cache()
    engine.facts = SimpleNamespace(local=registry is not None)  # type: ignore[attr-defined]
    monkeypatch.setattr(loopback, "registry", registry)
    it, said = bench_on(engine)
    found = parts._base_pulls(it, engine.kitchen(), "base", tmp_path / "registry")
    assert found == {"base_pulls": [], "base_not_pulled": reason}
    assert reason in said[-1]


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


def test_without_git_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert results.revision(ROOT) == "" and common.commit() == ""


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": "2", "parts": {}}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(UserError, match="holds no results"):
        results.read(file)


@pytest.mark.parametrize(("written", "then"), [(1, "measures anew"), (99, "`git pull`")])
def test_results_of_another_format_are_told_as_such(tmp_path: Path, written: int, then: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"format": written, "parts": {}}))
    with pytest.raises(UserError, match=f"holds results in format {written}, not in format 2") as told:
        results.read(file)
    assert then in str(told.value)


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


def test_why_the_pull_of_a_base_was_not_timed_is_on_the_page() -> None:
    untimed: Any = cold(60.0)
    untimed["data"]["base_not_pulled"] = "apt-get -q update: a | b\nended"
    text = page.tables({"cold": untimed}, "")
    assert (
        "| pull of its base, registry on this machine | not timed: apt-get -q update: a \\| b ended |  |  |  |" in text
    )
    assert "with the pull of conventional's base" not in text


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


def test_growth_that_was_measured_once_is_said_to_be() -> None:
    data: Any = planned_in((0.6, 0.6), (0.7, 0.72), (1.1, 1.12), (1.6, 1.64))
    for row in data["data"]["sizes"]:
        del row["runs"][1:]
    text = page.tables({"plan": data}, "")
    assert "| undecided: measured once (`--repeat 2` tells how far runs differ) |" in text
    assert "runs differ by more than a step" not in text


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
    text = page.tables({}, (ROOT / "results" / "history.md").read_text())
    assert "measured on another machine" in text and "H100" in text


def test_the_page_in_the_docs_is_current() -> None:
    path = "docs/benchmarks.md"
    assert generate.files(SOURCES)[path] == (ROOT / path).read_bytes()
