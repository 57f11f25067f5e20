"""Recipes of layers: only what decides a layer's bytes changes its recipe, and all above it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
"""Path in the context -> digest."""
LAYERS = ["base", "debian", "torch", "workdir", "settings"]
NONE = None


def recipe_with(
    dockerfile: str = DOCKERFILE,
    files: Mapping[str, str] = FILES,
    base: str = "base",
    platform: Platform = Platform.AMD64,
) -> ImageRecipe:
    return recipe.dockerfile_recipe(dockerfile, files, base, platform)


def changed_layers(other: ImageRecipe) -> list[str]:
    """Return the layers whose recipe is another than that of the unchanged Dockerfile."""
    digests = {row.layer: row.digest for row in recipe_with().layers}
    return [row.layer for row in other.layers if row.digest != digests[row.layer]]


def layers_from(first: str | None) -> list[str]:
    """Return a layer and all above it; none for None."""
    return LAYERS[LAYERS.index(first) :] if first else []


# --- a Dockerfile ---------------------------------------------------------------------------------


def test_each_layer_has_a_recipe_but_that_of_the_suite() -> None:
    assert [row.layer for row in recipe_with().layers] == LAYERS


@pytest.mark.parametrize(
    ("path", "first_changed"),
    [
        ("scripts/debian.sh", "debian"),
        ("locks/tools.txt", "torch"),  # of a stage that the step mounts
        ("pruner/__main__.py", "torch"),  # in a folder that the step mounts
        ("host/env", NONE),  # this machine's mirror and certificates
        ("suite/claims.json", NONE),
        ("README", NONE),
    ],
)
def test_a_file_changes_the_recipe_of_the_step_that_mounts_it_and_of_all_above(
    path: str, first_changed: str | None
) -> None:
    with_other_file = recipe_with(files={**FILES, path: "2"})

    assert changed_layers(with_other_file) == layers_from(first_changed)


@pytest.mark.parametrize(
    ("before", "after", "first_changed"),
    [
        ("debian.sh git", "debian.sh git less", "debian"),
        ("a comment", "another comment", NONE),
        ("ENV A=b", 'ENV A=b\nENV UV_OVERRIDE="/a file"', NONE),  # uv alone reads it, for users
        ("ENV A=b", 'ENV A="b UV_OVERRIDE=c"', "workdir"),  # a text that only names it
        ("ENV A=b", "ENV A=c", "workdir"),
        ("revision=1", "revision=2", NONE),
        ('["bash"]', '["sh"]', "settings"),
        ("/run/scripts/suite.sh", "/run/scripts/suite.sh --new", NONE),
    ],
    ids=[
        "a command",
        "a comment",
        "of installers",
        "only named",
        "a variable",
        "a label",
        "the start command",
        "the suite",
    ],
)
def test_an_instruction_changes_its_own_recipe_and_all_above(
    before: str, after: str, first_changed: str | None
) -> None:
    with_other_instruction = recipe_with(DOCKERFILE.replace(before, after))

    assert changed_layers(with_other_instruction) == layers_from(first_changed)


def test_another_base_changes_every_recipe() -> None:
    assert changed_layers(recipe_with(base="another base")) == LAYERS


def test_another_platform_changes_every_recipe_but_the_bases_own() -> None:
    """The base's recipe is given, and says for which platform it is."""
    assert changed_layers(recipe_with(platform=Platform.ARM64)) == layers_from("debian")


# --- images ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LockedImage:
    """An image with its lock, on a base that was made of Debian packages."""

    image: Image
    locks: Mapping[str, bytes]
    base: BaseContext
    recipe_of_base: str

    def recipe(self, wheels: Mapping[str, str] | None = None) -> ImageRecipe:
        return recipe.image_recipe(
            self.image,
            self.locks,
            self.base,
            self.recipe_of_base,
            wheels=wheels or {},
            missing={},
        )


def locked_image(name: str) -> LockedImage:
    (planned,) = plan.select([name], SOURCES)
    assert planned.image
    packages = debian.require(planned.image.base, CHECKOUT.locks)
    base = BaseContext(
        reference="x", origin="bootstrapped", packages=packages.serialize_only(packages.layer)
    )
    return LockedImage(
        image=planned.image,
        locks=lock_file.read(planned.image, CHECKOUT.locks).files,
        base=base,
        recipe_of_base=recipe.base_recipe(base, bootstrap.labels(packages)),
    )


def test_images_share_the_recipes_of_the_layers_that_they_share() -> None:
    plain = locked_image("cu124-torch25").recipe()
    devel = locked_image("cu124-torch25-devel").recipe()

    shared = []
    for of_plain, of_devel in zip(plain.layers, devel.layers, strict=True):
        if of_plain == of_devel:
            shared.append(of_plain.layer)
    assert shared == ["base", "debian", "cuda", "torch", "kernels", "libraries"]


def test_the_revision_of_the_matrix_is_in_no_recipe() -> None:
    locked = locked_image("cu124-torch25")
    of_another_revision = replace(locked, image=replace(locked.image, revision="another"))

    assert of_another_revision.recipe() == locked.recipe()


def test_a_wheel_that_no_index_has_is_in_the_recipe_by_its_digest() -> None:
    locked = locked_image("cu126-torch27")
    wheel = locked.image.official_wheel("flash-attn")
    assert wheel

    with_wheel = locked.recipe({wheel.filename: "1"})

    assert "flash_attn" in [row.layer for row in with_wheel.layers]
    assert locked.recipe({wheel.filename: "1"}) == with_wheel
    assert locked.recipe({wheel.filename: "2"}) != with_wheel
