"""Recipes of wheels: what a wheel depends on, its key, what can be compiled, and by which nvcc."""

from dataclasses import replace
from typing import Any

import pytest

from images.errors import UserError
from images.host.hashing import sha256
from images.wheels.recipe import NvccProvider, jobs_for, patch_of, recipe_for
from tests.support.cases import cases
from tests.support.commands import call
from tests.support.recipes import SOURCES, image, recipe_of

GIB = 1024**3


def test_a_recipe_has_what_the_wheel_depends_on() -> None:
    recipe = recipe_of("cu130-torch211-sm90", "causal-conv1d")

    assert (recipe.torch, recipe.wheel_cuda, recipe.python) == ("2.11.0", "13.0", "3.11")
    assert recipe.archs == ("sm_90",)
    assert (recipe.toolkit, recipe.provider) == ("13.0", NvccProvider.WHEELS)
    assert "nvidia-cuda-nvcc==13.0.88" in recipe.parts
    assert recipe.key.startswith("causal-conv1d-1.7.0-")


# --- the key --------------------------------------------------------------------------------------


CHANGES: dict[str, Any] = cases(__file__, "changes")


@pytest.mark.parametrize("field", CHANGES)
def test_everything_that_the_wheel_depends_on_changes_the_key(field: str) -> None:
    changed = replace(recipe_of(), **{field: CHANGES[field]})

    assert changed.key != recipe_of().key


def test_images_that_need_the_same_wheel_have_the_same_key() -> None:
    assert recipe_of("cu130-torch211-sm90-devel").key == recipe_of("cu130-torch211-sm90").key


def test_memory_for_compiling_does_not_change_the_key() -> None:
    assert replace(recipe_of(), job_memory=9).key == recipe_of().key


def test_a_level_of_processors_and_a_patch_change_the_key() -> None:
    recipe = recipe_of("cu124-torch25-colossalai", "colossalai")

    keys = {
        recipe.key,
        replace(recipe, cpu="x86-64-v2").key,
        replace(recipe, cpu="").key,
        replace(recipe, patch="").key,
    }
    assert len(keys) == 4


def test_a_recipe_without_level_and_patch_has_the_key_of_wheels_that_people_have_already() -> None:
    assert recipe_of().key == "causal-conv1d-1.7.0-db63731ad381d66a"


def test_a_recipe_has_the_hash_of_the_patch_that_the_matrix_names() -> None:
    recipe = recipe_of("cu124-torch25-colossalai", "colossalai")
    patch = patch_of(SOURCES.matrix.sources["colossalai"])

    assert recipe.cpu == "x86-64-v3"
    assert recipe.patch == sha256(patch)
    assert b"+++ b/colossalai/kernel/kernel_loader.py" in patch


# --- what can be compiled -------------------------------------------------------------------------


def test_a_package_is_compiled_for_the_images_architectures_from_its_minimum_on() -> None:
    conv1d = recipe_of("cu130-torch211", "causal-conv1d")
    flash_attn = recipe_of("cu128-torch28", "flash-attn")

    assert "sm_75" in conv1d.archs
    assert flash_attn.archs[0] == "sm_80"
    assert flash_attn.environment["FLASH_ATTN_CUDA_ARCHS"].startswith("80;86;90")


def test_the_release_that_the_image_pins_is_compiled() -> None:
    assert recipe_of("cu128-torch28", "flash-attn").version == "2.8.3"


@pytest.mark.parametrize(
    ("name", "package", "reason"),
    [
        ("cu130-torch211", "numpy", "is no package that truetag can compile"),
        ("cu130-torch214", "flash-attn", "compiles on torch <2.14"),
        ("cu130-torch211", "colossalai", r"compiles on torch >=2.2,<=2.5.1"),
        ("cu126-torch25-sm70", "causal-conv1d", "compiles for sm_75 and newer"),
    ],
    ids=["no row", "a newer torch", "another torch", "an older GPU"],
)
def test_a_package_that_cannot_be_compiled_is_refused_with_the_reason(
    name: str, package: str, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        recipe_of(name, package)


def test_the_verb_names_what_can_be_compiled_for_an_image_that_pins_nothing_of_it() -> None:
    finished = call("wheels", "cu130-torch212")

    assert finished.returncode == 2
    assert "pins none of the packages that `sources`" in finished.stderr
    assert "nox -s wheels -- cu130-torch212 PACKAGE" in finished.stderr


# --- nvcc -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "provider", "part"),
    [
        ("cu130-torch211", NvccProvider.WHEELS, "nvidia-cuda-nvcc==13.0.88"),
        ("cu128-torch28", NvccProvider.IMAGE, "nvidia/cuda:12.8.1-devel-ubuntu22.04"),
        ("cu124-torch26", NvccProvider.DEBIAN, "trixie"),
    ],
)
def test_the_matrix_says_where_nvcc_comes_from(
    name: str, provider: NvccProvider, part: str
) -> None:
    recipe = recipe_of(name, "causal-conv1d")

    assert recipe.provider is provider
    assert part in recipe.parts


def test_a_package_without_gpu_code_needs_no_nvcc() -> None:
    recipe = recipe_of("cu128-torch28", "deepspeed")

    assert recipe.provider is NvccProvider.NONE
    assert (recipe.parts, recipe.archs) == ((), ())
    assert (recipe.toolkit, recipe.toolkit_home) == ("", "")


def test_a_toolkit_without_a_provider_of_nvcc_is_refused() -> None:
    toolkits = SOURCES.matrix.toolkits
    without_compiler = toolkits["12.4"].model_copy(update={"compiler": None})
    matrix = SOURCES.matrix.model_copy(update={"toolkits": {**toolkits, "12.4": without_compiler}})

    with pytest.raises(
        UserError, match=r"no nvcc for CUDA 12\.4 here.*has neither `devel` nor `compiler`"
    ):
        recipe_for(image("cu124-torch26"), "causal-conv1d", matrix)


@pytest.mark.parametrize(
    ("cpus", "memory", "jobs"),
    [(2, 24 * GIB, 2), (16, 128 * GIB, 16), (16, 24 * GIB, 6), (16, 2 * GIB, 1)],
    ids=["few cores", "enough memory", "little memory", "too little for one"],
)
def test_jobs_follow_from_cores_and_memory(cpus: int, memory: int, jobs: int) -> None:
    assert jobs_for(recipe_of("cu128-torch28", "flash-attn"), cpus, memory) == jobs
