"""Recipes: what decides a layer's bytes changes its recipe and all above it, and nothing else does."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from images.config.paths import CHECKOUT
from images.config.platforms import Platform
from images.context import bootstrap, recipe
from images.context.labels import BaseContext
from images.context.recipe import ImageRecipe
from images.locking import debian, lock_file
from images.planning import plan
from images.planning.image import Image
from tests.support.sources import SOURCES

DOCKERFILE = """\
FROM debian AS system
# a comment, also inside a command
RUN --mount=type=bind,source=host,target=/run/host \\
    --mount=type=bind,source=scripts/debian.sh,target=/run/scripts/debian.sh \\
    # of packages
    sh /run/scripts/debian.sh git
FROM system AS tools
RUN --mount=type=bind,source=locks/tools.txt,target=/run/locks/tools.txt x
FROM system AS torch
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/run/tools \\
    --mount=type=bind,source=pruner,target=/run/pruner sh -r /run/locks/torch.txt
FROM torch AS image
RUN --mount=type=bind,source=suite,target=/run/suite sh /run/scripts/suite.sh
ENV A=b
LABEL revision=1
WORKDIR /workspace
CMD ["bash"]
"""
FILES = {
    "scripts/debian.sh": "1",
    "locks/tools.txt": "1",
    "pruner/__main__.py": "1",
    "host/env": "1",
    "suite/claims.json": "1",
    "README": "1",
}
LAYERS = ("base", "debian", "torch", "workdir", "settings")


def recipe_of(
    dockerfile: str = DOCKERFILE, files: Mapping[str, str] = FILES, base: str = "b"
) -> ImageRecipe:
    return recipe.dockerfile_recipe(dockerfile, files, base, Platform.AMD64)


def changed_layers(other: ImageRecipe) -> list[str]:
    before = {row.layer: row.digest for row in recipe_of().layers}
    return [row.layer for row in other.layers if before[row.layer] != row.digest]


@pytest.mark.parametrize(
    ("path", "first_changed"),
    [
        ("scripts/debian.sh", "debian"),
        ("locks/tools.txt", "torch"),  # of a stage that the step mounts
        ("pruner/__main__.py", "torch"),  # in a folder that it mounts
        ("host/env", None),  # this machine's mirror and certificates
        ("suite/claims.json", None),
        ("README", None),
    ],
)
def test_a_file_changes_the_recipe_of_the_step_that_mounts_it_and_of_all_above(
    path: str, first_changed: str | None
) -> None:
    expected = list(LAYERS[LAYERS.index(first_changed) :]) if first_changed else []
    assert changed_layers(recipe_of(files={**FILES, path: "2"})) == expected


@pytest.mark.parametrize(
    ("before", "after", "first_changed"),
    [
        ("debian.sh git", "debian.sh git less", "debian"),
        ("a comment", "another comment", None),
        ("ENV A=b", "ENV A=c", "workdir"),
        ("revision=1", "revision=2", None),
        ('["bash"]', '["sh"]', "settings"),
        ("/run/scripts/suite.sh", "/run/scripts/suite.sh --new", None),
    ],
)
def test_a_step_changes_its_own_recipe_and_all_above(
    before: str, after: str, first_changed: str | None
) -> None:
    expected = list(LAYERS[LAYERS.index(first_changed) :]) if first_changed else []
    assert changed_layers(recipe_of(DOCKERFILE.replace(before, after))) == expected


def test_another_base_or_platform_changes_every_recipe() -> None:
    assert [row.layer for row in recipe_of().layers] == list(LAYERS)
    assert changed_layers(recipe_of(base="c")) == list(LAYERS)
    other = recipe.dockerfile_recipe(DOCKERFILE, FILES, "b", Platform.ARM64)
    assert changed_layers(other) == list(LAYERS[1:]), (
        "the base's recipe says for which platform it is"
    )


def locked(name: str) -> tuple[Image, Mapping[str, bytes], BaseContext, str]:
    (planned,) = plan.select([name], SOURCES)
    assert planned.image
    packages = debian.require(planned.image.base, CHECKOUT.locks)
    base = BaseContext(
        reference="x", origin="bootstrapped", packages=packages.serialize_only(packages.layer)
    )
    below = recipe.base_recipe(base, bootstrap.labels(packages))
    return planned.image, lock_file.read(planned.image, CHECKOUT.locks).files, base, below


def test_images_share_the_recipes_of_what_they_share_and_the_matrixs_revision_is_in_none() -> None:
    image, locks, base, below = locked("cu124-torch25")
    ours = recipe.image_recipe(image, locks, base, below, wheels={}, missing={})
    devel = recipe.image_recipe(*locked("cu124-torch25-devel"), wheels={}, missing={})
    shared = [
        one.layer for one, other in zip(ours.layers, devel.layers, strict=True) if one == other
    ]
    assert shared == ["base", "debian", "cuda", "torch", "kernels", "libraries"]
    revised = replace(image, revision="another")
    assert recipe.image_recipe(revised, locks, base, below, wheels={}, missing={}) == ours


def test_a_wheel_that_no_index_has_is_in_the_recipe_by_its_digest() -> None:
    image, locks, base, below = locked("cu126-torch27")
    (wheel,) = (one for one in image.prebuilt if one.name == "flash-attn")
    recipes = [
        recipe.image_recipe(image, locks, base, below, wheels={wheel.filename: digest}, missing={})
        for digest in ("1", "1", "2")
    ]
    assert "flash_attn" in [row.layer for row in recipes[0].layers]
    assert recipes[0] == recipes[1] != recipes[2]
