"""Marks in contexts, and what a builder leaves in the build cache."""

import pytest

from benchmarks import builder
from benchmarks.builder import CacheRecord
from tests.support.bench import STEP, Cache
from tests.support.checkout import ROOT


def test_every_step_of_a_golden_dockerfile_bears_the_run_id_or_stands_on_one_that_does() -> None:
    text = (ROOT / "tests" / "golden" / "cu126-torch25.Dockerfile").read_bytes()
    marked = builder.marked_with({"Dockerfile": text}, "RUN-ID")["Dockerfile"]
    assert isinstance(marked, bytes)
    steps = marked.decode().split("\nRUN ")[1:]
    assert all("RUN-ID" in step or "cp -a" in step for step in steps)
    assert marked.count(b"id=truetag-uv,") == text.count(b"id=truetag-uv,")


def test_traces_are_what_bears_the_run_id_and_all_above_it() -> None:
    def record(name: str, *parents: str, made_by: str = "mount / from exec") -> CacheRecord:
        return CacheRecord(id=name, parents=parents, made_by=made_by)

    records = (
        record("copy", "install"),
        record("install", "system", made_by="mount / from exec : RUN-ID && sh install"),
        record("system"),
        record("top", "copy"),
        record("wheels", made_by="cached mount /run/uv from exec : RUN-ID && sh install"),
        record("theirs", "system"),
    )
    found = builder.traces(records, "RUN-ID")
    assert {one.id for one in found} == {"top", "copy", "install", "wheels"}
    order = [one.id for one in builder.topmost_first(found)]
    assert order.index("top") < order.index("copy") < order.index("install")
    assert builder.traces(records, "ANOTHER") == []


def test_what_others_build_meanwhile_stays_where_our_steps_are_marked() -> None:
    cache = Cache()
    with cache.builder().nothing_new_kept():
        cache.builder().build(STEP)
    assert set(cache.records) == {"old", "theirs"}
    unmarked = Cache()
    with unmarked.builder().nothing_at_all_kept():
        unmarked.builder().build(STEP, marked=False)
    assert set(unmarked.records) == {"old"}, "nobody knows whose a record is: the docs say so"


@pytest.mark.parametrize("cold", [True, False])
def test_what_is_built_without_steps_from_the_cache_stands_on_a_layer_of_its_own(cold: bool) -> None:
    cache = Cache()
    cache.builder().build(STEP, cold=cold)
    ((files, no_cache),) = cache.asked
    assert no_cache is cold
    assert files["Dockerfile"].startswith(b"FROM base\nRUN echo RUN-ID >/uncached\n") is cold
