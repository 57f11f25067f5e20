"""Bytes of images: from which build, and without which layer."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.bench.builder import Builder
from images.bench.parts import sizes
from images.bench.parts.sizes import Sizes
from images.context.hosting import HostSettings
from images.engine import CacheRecord, HistoryEntry, ignore
from tests.support.bench import STEP, Cache, bench_on


def test_an_image_is_another_on_another_base_though_its_context_is_the_same() -> None:
    context = {"Dockerfile": b"FROM base:1\n", "suite/claims.json": b"[]", "host/env": b"one"}
    made_from = sizes.digest(context, "sha256:a")
    assert sizes.digest({**context, "host/env": b"two"}, "sha256:a") == made_from
    assert sizes.digest(context, "sha256:b") != made_from
    assert sizes.digest({**context, "suite/claims.json": b"[{}]"}, "sha256:a") != made_from


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

    @property
    def sdk(self) -> SimpleNamespace:
        *lower, upper = map(str, self.folders.values())
        data = {"UpperDir": upper, "LowerDir": ":".join(reversed(lower))}
        driver = {"Name": "overlay2", "Data": data}
        return SimpleNamespace(
            inspect_image=lambda _ref: {"GraphDriver": driver, "RootFS": {"Layers": [*self.folders]}}
        )

    def history(self, _reference: str) -> tuple[HistoryEntry, ...]:
        made = {
            "RUN /bin/sh -c sh /run/scripts/install.sh": 3_000,
            "RUN /bin/sh -c echo RUN-ID >/uncached # buildkit": 2_000,
        }
        return tuple(HistoryEntry(created_by=text, size=size, comment="") for text, size in made.items())

    def build(self, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(image_id="sha256:image")

    def build_cache(self) -> tuple[CacheRecord, ...]:
        return ()

    def untag(self, _name: str) -> None:
        """There are no names."""


@pytest.mark.parametrize(
    ("measure", "layers", "size"),
    [(Sizes.uncached, ["base", "torch"], 4_000), (Sizes.as_built, ["base", "own", "torch"], 6_000)],
)
def test_the_layer_that_keeps_an_image_apart_is_in_no_figure(
    tmp_path: Path, measure: Callable[..., None], layers: list[str], size: int
) -> None:
    engine: Any = Shelf(tmp_path)
    kept: list[set[str]] = []
    bench, _ = bench_on(engine, keep=lambda data: kept.append(set(data["layers"])))
    found = Sizes.open(bench)
    measure(found, Builder(engine, HostSettings(), "RUN-ID", ignore), "one", STEP, "base:1")
    named = [f"sha256:{name}" for name in layers]
    assert found.data["images"]["one"]["layers"] == named and found.data["images"]["one"]["bytes"] == size
    assert set(found.data["layers"]) == set(named) == set.union(*kept), "an interrupted run kept it neither"


@pytest.mark.parametrize(("measure", "no_cache"), [(Sizes.uncached, True), (Sizes.as_built, False)])
def test_images_of_the_sequence_are_built_without_cache_and_those_to_pull_as_builds_make_them(
    monkeypatch: pytest.MonkeyPatch, measure: Callable[..., None], no_cache: bool
) -> None:
    cache = Cache()
    monkeypatch.setattr(Sizes, "_unmeasured", lambda *_: "made from")
    monkeypatch.setattr(Sizes, "_measure", lambda *_: None)
    measure(Sizes.open(bench_on(cache)[0]), cache.builder(), "one", STEP, "base:1")
    assert [asked for _, asked in cache.asked] == [no_cache]


def test_what_the_same_run_measured_before_it_was_interrupted_is_not_measured_again() -> None:
    cache = Cache()
    made_from = sizes.digest(STEP, "base:1")
    so_far = {"images": {"one": {"made_from": made_from, "bytes": 1, "layers": []}}, "layers": {}}
    bench, said = bench_on(cache, so_far=so_far)
    Sizes.open(bench).as_built(cache.builder(), "one", STEP, "base:1")
    assert cache.asked == [] and said == ["one: measured before, from the same files"]
