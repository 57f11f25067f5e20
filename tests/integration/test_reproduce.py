"""Two builds on a real engine: a difference is found and named, and the same lock gives the same base."""

import re
from pathlib import Path

import pytest

from images.config.paths import CHECKOUT
from images.context import bootstrap
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import Engine
from images.engine import layers as layers_of
from images.engine.progress import Progress
from images.engine.runtime import ImageInfo
from images.locking import debian
from images.planning.image import Image
from tools import reproduce
from tools.cold_builds import build_cache

pytestmark = pytest.mark.engine


def test_the_first_file_that_differs_is_named_and_nothing_is_left(engine: Engine, base: BaseContext) -> None:
    dockerfile = f"FROM {base.reference}\nRUN mkdir /opt/folder && date +%N >/opt/folder/now\n"
    before = {record.id for record in build_cache(engine)}
    with Progress() as progress:
        found = reproduce.reproduce(engine, "test", {"Dockerfile": dockerfile.encode()}, progress, None)
    assert not found.equal
    assert [layer.first == layer.second for layer in found.layers] == [True, False]
    # Within one second of each other they differ in the content alone, else in a folder's time first.
    assert re.match(r"opt(/folder(/now)?)?: (time|sha256) ", found.layers[1].difference)
    assert re.search(r"; opt/folder/now differs from byte [0-8] on$", found.layers[1].difference)
    first = [record for record in build_cache(engine) if record.id not in before]
    assert len([record for record in first if "date" in record.made_by]) <= 1, "the second build's record is gone"


def test_recorded_layers_are_what_their_files_come_to(
    engine: Engine, parent: ImageInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = layers_of.stored(Path(engine.facts.data_root), parent.layers) if engine.facts.local else {}
    small = [one for one in found.values() if one.diff_id in layers_of.recorded() and one.size < 200_000_000]
    if not small:
        pytest.skip("the engine's files are not here to be read, or it writes what is compared")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [layers_of.worked_out(one) for one in small] == [layers_of.recorded()[one.diff_id] for one in small]


def test_the_same_lock_gives_the_same_base(engine: Engine, image: Image, base: BaseContext) -> None:
    if base.origin != "bootstrapped":
        pytest.skip("there is a registry: no base is made here")
    try:
        lock = debian.require(image.base, CHECKOUT.locks)
        made = bootstrap.bootstrap(engine, image.base, lock, "truetag-test-base:1", host_settings())
        assert made.id == base.digest
    finally:
        engine.untag("truetag-test-base:1")
