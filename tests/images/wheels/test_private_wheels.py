"""Wheels of a private index, which this machine fetches for the build context."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from images.context import origin, render
from images.context.labels import BaseContext
from images.errors import UserError
from images.locking import inputs, resolve
from images.locking.lock_file import Lock
from images.planning.image import Image, Pin, PrivateIndex
from images.wheels import private_wheels
from tests.support.private_index import (
    FOLDER,
    NAME,
    PASSWORD,
    PASSWORD_VARIABLE,
    USER,
    USER_VARIABLE,
    add_public_packages,
    private_index,
    with_private_pins,
)
from tests.support.sources import image
from tests.support.torch_index import Indexes, indexes, known_python, uv_asks_once

__all__ = ["indexes", "known_python", "uv_asks_once"]

WHEEL = "acme_train-1.4.0-py3-none-any.whl"
BASE = BaseContext(reference="debian:bookworm-slim", origin="digest", digest="sha256:0")


@pytest.fixture
def index(indexes: Indexes, monkeypatch: pytest.MonkeyPatch) -> PrivateIndex:
    """Yield a private index with one package, and the login for it."""
    monkeypatch.setattr(inputs, "TOOLS", ("installer==1.0",))
    monkeypatch.setenv(USER_VARIABLE, USER)
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    add_public_packages(indexes)
    indexes.add(FOLDER, "acme-train", "1.4.0")
    return private_index(indexes)


@pytest.fixture
def private(index: PrivateIndex) -> Image:
    """Return an image with a package of the private index."""
    plain = replace(
        image("cu126-torch25"),
        pins=(Pin(name="torch", version="2.5.1", layer="torch"),),
        toolkit=(Pin(name="nvidia-cuda-nvcc-cu12", version="12.6.85", layer="toolkit"),),
        index=None,
        prebuilt=(),
    )
    return with_private_pins(plain, index, {"acme-train": "1.4.0"}, "light")


@pytest.fixture
def lock(private: Image) -> Lock:
    return resolve.resolve(private)


def problem_of_obtaining(image: Image, lock: Lock, cache: Path, refusal: str = "") -> str:
    """Return the problem that the wheels can't be had, as it is printed."""
    with pytest.raises(UserError) as error:
        private_wheels.obtain(image, lock, cache=cache, refusal=refusal)
    (problem,) = error.value.problems
    return str(problem)


def test_a_private_wheel_is_fetched_once(
    indexes: Indexes, private: Image, lock: Lock, tmp_path: Path
) -> None:
    wheels = private_wheels.obtain(private, lock, cache=tmp_path / "wheels")
    again = private_wheels.obtain(private, lock, cache=tmp_path / "wheels")

    assert again == wheels
    assert wheels[WHEEL].read_bytes() == indexes.files[f"{FOLDER}/{WHEEL}"]
    assert len(indexes.asked(WHEEL)) == 1


def test_a_wheel_of_the_wheelhouse_comes_first_if_it_is_the_locked_one(
    indexes: Indexes, private: Image, lock: Lock, tmp_path: Path
) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / WHEEL).write_bytes(b"another build")
    fetched = private_wheels.obtain(private, lock, cache=tmp_path, wheelhouse=house)
    (house / WHEEL).write_bytes(indexes.files[f"{FOLDER}/{WHEEL}"])

    of_house = private_wheels.obtain(private, lock, cache=tmp_path, wheelhouse=house)

    assert house not in fetched[WHEEL].parents
    assert of_house == {WHEEL: house / WHEEL}


def test_an_offline_build_names_the_files_that_it_lacks(
    private: Image, lock: Lock, tmp_path: Path
) -> None:
    problem = problem_of_obtaining(private, lock, tmp_path, "--offline reaches no network")

    assert f"needs {WHEEL}, which only a private index has: --offline" in problem
    assert "--wheelhouse FOLDER" in problem


def test_a_wrong_password_is_named_by_its_place_with_the_next_command(
    private: Image, lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "wr0ng&secret")

    problem = problem_of_obtaining(private, lock, tmp_path)

    assert f"refuses the login of {PASSWORD_VARIABLE}" in problem
    assert "build -- cu126-torch25" in problem
    assert "wr0ng" not in problem


def test_a_wheel_that_the_index_has_replaced_is_refused(
    indexes: Indexes, private: Image, lock: Lock, tmp_path: Path
) -> None:
    indexes.add(FOLDER, "acme-train", "1.4.0", "einops")

    problem = problem_of_obtaining(private, lock, tmp_path)

    assert f"no longer has {WHEEL} with the sha256 that the lock has" in problem
    assert (
        "ask those who run the index; if the change is meant, `nox -s lock -- cu126-torch25`"
        in problem
    )


def test_a_file_that_something_rewrites_on_the_way_is_refused(
    indexes: Indexes, private: Image, lock: Lock, tmp_path: Path
) -> None:
    indexes.files[f"{FOLDER}/{WHEEL}"] += b"rewritten"

    problem = problem_of_obtaining(private, lock, tmp_path)

    assert f"the file {WHEEL} that came from this index is not the one in the lock" in problem
    assert not list(tmp_path.rglob(WHEEL))


# --- the build context ----------------------------------------------------------------------------


def test_steps_install_a_private_wheel_as_a_file_and_no_step_looks_for_it_on_an_index(
    private: Image, lock: Lock
) -> None:
    context = render.render(private, lock.files, BASE, wheels={WHEEL: b"wheel"})

    dockerfile = render.content_of(context["Dockerfile"]).decode()
    assert f"install.sh /opt/venv/bin/python /run/wheels/{WHEEL}" in dockerfile
    assert "acme-train" not in render.content_of(context["locks/light.txt"]).decode()
    whole = b"".join(render.content_of(content) for content in context.values())
    for secret in (PASSWORD, USER_VARIABLE, FOLDER, NAME):
        assert secret.encode() not in whole


def test_the_recipe_has_the_private_wheel_that_the_lock_names(
    private: Image, lock: Lock, tmp_path: Path
) -> None:
    """So the layers of a built image are recognised where nobody has the wheel."""
    located = private_wheels.locate(lock, tmp_path)
    digests = {path.name: digest for path, digest in located.items()}
    other = {WHEEL: hashlib.sha256(b"other").hexdigest()}

    recipes = set()
    for wheels in (digests, other):
        of_build = origin.of_build(private, lock, BASE, tmp_path, wheels=wheels, missing={})
        assert of_build.recipe
        recipes.add(of_build.recipe.digest)

    assert digests == {WHEEL: lock.layers["light"][0].hashes[0]}
    assert len(recipes) == 2
