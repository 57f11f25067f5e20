"""Recipes: what a wheel depends on, its key, what can be compiled and by whose nvcc."""

from dataclasses import replace
from typing import Any

import pytest

from images.errors import UserError
from images.host.hashing import sha256
from images.wheels.recipe import jobs_for, patch_of, recipe_for
from tests.support.cases import cases
from tests.support.commands import call
from tests.support.recipes import SOURCES, image, recipe_of

GIB = 1024**3


def test_a_recipe_says_what_the_wheel_depends_on() -> None:
    found = recipe_of()
    assert (found.torch, found.wheel_cuda, found.toolkit, found.python) == (
        "2.11.0",
        "13.0",
        "13.0",
        "3.11",
    )
    assert found.archs == ("sm_90",)
    assert found.provider == "wheels"
    assert "nvidia-cuda-nvcc==13.0.88" in found.parts
    assert found.key.startswith("causal-conv1d-1.7.0-")


CHANGES: dict[str, Any] = cases(__file__, "changes")


@pytest.mark.parametrize("field", CHANGES)
def test_whatever_matters_moves_the_key(field: str) -> None:
    assert replace(recipe_of(), **{field: CHANGES[field]}).key != recipe_of().key


def test_the_key_is_the_same_for_all_images_that_ask_the_same() -> None:
    assert recipe_of("cu130-torch211-sm90-devel").key == recipe_of().key
    assert replace(recipe_of(), job_memory=9).key == recipe_of().key


def test_archs_below_a_packages_floor_are_not_asked_of_it() -> None:
    assert "sm_75" in recipe_of("cu130-torch211").archs
    found = recipe_of("cu128-torch28", "flash-attn")
    assert found.archs[0] == "sm_80"
    assert found.environment["FLASH_ATTN_CUDA_ARCHS"].startswith("80;86;90")
    assert found.version == "2.8.3"


@pytest.mark.parametrize(
    ("name", "package", "said"),
    [
        ("cu130-torch211", "numpy", "is no package that is compiled here"),
        ("cu130-torch214", "flash-attn", "compiles on torch <2.14"),
        ("cu130-torch211", "colossalai", r"compiles on torch >=2.2,<=2.5.1"),
        ("cu126-torch25-sm70", "causal-conv1d", "compiles for sm_75 and newer"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_reason(
    name: str, package: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        recipe_of(name, package)


@pytest.mark.parametrize(
    ("name", "package", "provider", "part"),
    [
        ("cu130-torch211", "causal-conv1d", "wheels", "nvidia-cuda-nvcc==13.0.88"),
        ("cu128-torch28", "causal-conv1d", "image", "nvidia/cuda:12.8.1-devel-ubuntu22.04"),
        ("cu124-torch26", "causal-conv1d", "debian", "trixie"),
        ("cu128-torch28", "deepspeed", "none", ""),
    ],
)
def test_the_matrix_says_where_nvcc_comes_from(
    name: str, package: str, provider: str, part: str
) -> None:
    found = recipe_of(name, package)
    assert found.provider == provider and part in (found.parts or [""])
    assert provider != "none" or (found.parts, found.archs, found.toolkit, found.toolkit_home) == (
        (),
        (),
        "",
        "",
    )


def test_no_provider_is_told_with_what_would_provide() -> None:
    toolkits = SOURCES.matrix.toolkits
    bare = {**toolkits, "12.4": toolkits["12.4"].model_copy(update={"compiler": None})}
    with pytest.raises(UserError, match=r"no nvcc for CUDA 12\.4 here.*names no provider"):
        recipe_for(
            image("cu124-torch26"),
            "causal-conv1d",
            SOURCES.matrix.model_copy(update={"toolkits": bare}),
        )


@pytest.mark.parametrize(
    ("cpus", "memory", "jobs"),
    [(2, 24 * GIB, 2), (16, 128 * GIB, 16), (16, 24 * GIB, 6), (16, 2 * GIB, 1)],
)
def test_jobs_follow_cores_and_memory(cpus: int, memory: int, jobs: int) -> None:
    assert jobs_for(recipe_of("cu128-torch28", "flash-attn"), cpus, memory) == jobs


def test_the_verb_says_what_can_be_compiled() -> None:
    found = call("wheels", "cu130-torch212")
    assert found.returncode == 2
    assert "pins nothing that is compiled here" in found.stderr
    assert "nox -s wheels -- cu130-torch212 PACKAGE" in found.stderr


def test_a_level_of_processors_and_a_patch_move_the_key_and_their_absence_does_not() -> None:
    found = recipe_of("cu124-torch25-colossalai", "colossalai")
    assert (found.cpu, found.provider, found.archs[0]) == ("x86-64-v3", "debian", "sm_75")
    keys = {
        found.key,
        replace(found, cpu="x86-64-v2").key,
        replace(found, patch="").key,
        replace(found, cpu="").key,
    }
    assert len(keys) == 4
    plain = recipe_of()
    assert plain.key == "causal-conv1d-1.7.0-db63731ad381d66a", (
        "the key of wheels that people have already"
    )
    row = SOURCES.matrix.sources["colossalai"]
    assert found.patch == sha256(
        patch_of(row)
    ) and b"+++ b/colossalai/kernel/kernel_loader.py" in patch_of(row)
