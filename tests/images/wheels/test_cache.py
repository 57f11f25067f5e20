"""The wheel cache: by key, whole or not at all; how images look into it."""

import hashlib
from pathlib import Path

from images.wheels.prebuilt import find_compiled, store_compiled, wheel_finder
from images.wheels.recipe import BaseCompilers, for_base, recipe_for
from tests.support.recipes import SOURCES, gathered, image, recipe_of


def test_a_kept_wheel_is_found_by_its_key(tmp_path: Path) -> None:
    cache = tmp_path / "compiled"
    assert find_compiled(cache, "key") is None
    kept = store_compiled(cache, "key", "a-1-py3-none-any.whl", b"wheel", {"seconds": 1})
    assert find_compiled(cache, "key") == kept
    assert kept[1]["sha256"] == hashlib.sha256(b"wheel").hexdigest()
    assert [path.name for path in cache.iterdir()] == ["key"]


def test_a_damaged_wheel_is_told_and_not_taken_and_can_be_kept_anew(tmp_path: Path) -> None:
    said = list[str]()
    store_compiled(tmp_path, "key", "a-1-py3-none-any.whl", b"wheel", {})
    (tmp_path / "key" / "a-1-py3-none-any.whl").write_bytes(b"other")
    assert find_compiled(tmp_path, "key", said.append) is None
    assert "not what its record says" in said[0]
    (tmp_path / "key" / "record.json").write_text("{")
    assert find_compiled(tmp_path, "key", said.append) is None
    store_compiled(tmp_path, "key", "a-1-py3-none-any.whl", b"wheel", {})
    assert find_compiled(tmp_path, "key") is not None


def test_an_image_takes_the_wheel_of_its_own_key(tmp_path: Path) -> None:
    wanted, cache = image("cu128-torch28"), tmp_path / "compiled"
    finder = wheel_finder(SOURCES.matrix, cache)
    pin = wanted.pin("flash-attn")
    assert pin is not None
    assert finder(wanted, pin) is None
    key = recipe_of("cu128-torch28", "flash-attn").key
    kept, _ = store_compiled(cache, key, "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl", b"wheel", {})
    assert gathered(wanted, tmp_path, compiled=finder).files == {kept.name: kept}
    assert gathered("cu126-torch28", tmp_path, compiled=finder).files == {}


def test_an_image_on_a_base_that_has_torch_takes_the_wheel_compiled_there(tmp_path: Path) -> None:
    wanted, cache = image("cu130-torch211-py312-sm90"), tmp_path / "compiled"
    given = BaseCompilers(digest="sha256:b", gcc=13, nvcc="Build 1")
    recipe_there = for_base(given, recipe_for(wanted, "flash-attn", SOURCES.matrix))
    kept, _ = store_compiled(
        cache, recipe_there.key, "flash_attn-2.8.3.post2-cp312-cp312-linux_x86_64.whl", b"wheel", {}
    )
    finder = wheel_finder(SOURCES.matrix, cache, lambda _image: given)
    found = gathered(wanted, tmp_path, kept={"torch"}, compiled=finder)
    assert found.files == {kept.name: kept} and not found.missing
    has_all = gathered("cu128-torch28", tmp_path, kept={"flash-attn"})
    assert not has_all.files and not has_all.missing, "a package that the base has is not looked for"
