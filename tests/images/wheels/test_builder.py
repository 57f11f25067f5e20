"""The build context of the wheel builder: its stages, locks, and source archive."""

import io
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.config.paths import CHECKOUT
from images.context.labels import BaseContext
from images.context.render import Context
from images.errors import UserError
from images.host.hashing import sha256
from images.planning.image import Image
from images.wheels.builder import WheelOptions, builder_context, libraries
from images.wheels.recipe import Recipe
from tests.support.cases import cases
from tests.support.checkout import ROOT
from tests.support.recipes import SOURCES, image, recipe_of

BASE = BaseContext(reference="base:1", origin="tag")


def context_of(image: Image, recipe: Recipe, **options: Any) -> Context:
    """Return the context in which the wheel of a recipe is compiled for an image."""
    nowhere = Path("/nowhere")
    wheel_options = WheelOptions(
        out=nowhere, facts=SOURCES.facts, cache=nowhere, locks=CHECKOUT.locks, **options
    )
    host = {"host/env": b""}
    return builder_context(image, recipe, BASE, wheel_options, host=host, jobs=2)


def texts_of(name: str, package: str) -> dict[str, str]:
    """Return the files of the context in which a package is compiled for an image, by path."""
    files = context_of(image(name), recipe_of(name, package))
    return {path: content.decode() for path, content in files.items() if isinstance(content, bytes)}


def test_the_builder_has_the_stages_of_a_devel_image_and_those_that_compile() -> None:
    dockerfile = texts_of("cu130-torch211-sm90", "causal-conv1d")["Dockerfile"]

    stages = [line.split(" AS ")[1] for line in dockerfile.splitlines() if line.startswith("FROM")]
    assert stages == [
        "system",
        "tools",
        "cuda",
        "torch",
        "toolkit",
        "compiler",
        "builder",
        "audit",
    ]
    assert "toolkit.sh /opt/venv/bin/python 13.0 devel" in dockerfile
    assert "MAX_JOBS=2 sh /run/recipe/compile.sh" in dockerfile


def test_the_builder_compiles_only_for_the_architectures_of_its_recipe() -> None:
    files = texts_of("cu130-torch211-sm90", "causal-conv1d")

    assert "shim.sh /usr/local/cuda-13.0" in files["Dockerfile"]
    assert "export TRUETAG_ARCHS=90\n" in files["recipe/env"]
    assert "export TORCH_CUDA_ARCH_LIST=9.0\n" in files["recipe/env"]


def test_source_and_toolkit_are_installed_by_hash() -> None:
    files = texts_of("cu130-torch211-sm90", "causal-conv1d")

    assert recipe_of().sdist in files["recipe/source.txt"]
    assert "nvidia-cuda-nvcc==13.0.88" in files["locks/toolkit.txt"]


@pytest.mark.parametrize("stage", ["cuda", "torch"])
def test_the_torch_layer_is_the_images_own_byte_for_byte(stage: str) -> None:
    """So the engine has it already on a machine where the image was built."""
    golden = (ROOT / "tests/golden/cu130-torch211-devel.Dockerfile").read_text()
    (section,) = (text for text in golden.split("# ---- ") if text.startswith(f"{stage}:"))
    instructions = section.partition("\n")[2].strip()

    assert instructions in texts_of("cu130-torch211-sm90", "causal-conv1d")["Dockerfile"]


@pytest.mark.parametrize(
    ("name", "package", "present", "absent"),
    cases(__file__, "holds"),
    ids=[
        "no nvcc",
        "nvcc of NVIDIA's image",
        "nvcc of Debian's packages",
        "a level of processors and a patch",
    ],
)
def test_a_builder_has_what_its_recipe_asks_for(
    name: str, package: str, present: list[str], absent: list[str]
) -> None:
    files = texts_of(name, package)

    text = files["Dockerfile"] + files["recipe/env"] + files.get("recipe/source.patch", "")
    for part in present:
        assert part in text
    for part in absent:
        assert part not in text
    assert "recipe/host.sh" in files
    has_patch = package == "colossalai"
    assert ("recipe/source.patch" in files) is has_patch


@pytest.mark.parametrize(
    ("name", "package"), [("cu130-torch211-sm90", "causal-conv1d"), ("cu128-torch28", "deepspeed")]
)
def test_a_rendered_builder_passes_hadolint(tmp_path: Path, name: str, package: str) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(texts_of(name, package)["Dockerfile"])

    finished = subprocess.run(
        [str(hadolint), str(dockerfile)], capture_output=True, text=True, check=False
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert not finished.stdout


def test_a_source_archive_is_taken_from_a_folder_by_its_hash(tmp_path: Path) -> None:
    archive = tmp_path / "causal_conv1d-1.7.0.tar.gz"
    archive.write_bytes(b"source")
    recipe = replace(recipe_of(), sdist=sha256(b"source"))

    files = context_of(image("cu130-torch211"), recipe, sdists=tmp_path)

    assert files[f"recipe/{archive.name}"] == archive


def test_a_folder_without_the_source_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "causal_conv1d-1.7.0.tar.gz").write_bytes(b"another source")

    with pytest.raises(UserError, match="this folder has no source archive of causal-conv1d"):
        context_of(image("cu130-torch211"), recipe_of(), sdists=tmp_path)


def test_a_toolkit_that_nobody_locked_is_an_error_with_the_next_command() -> None:
    recipe = replace(recipe_of(), parts=("nvidia-cuda-nvcc==1.2.3",))

    with pytest.raises(UserError, match="nox -s lock -- cu130-torch211-devel"):
        context_of(image("cu130-torch211"), recipe)


def test_the_libraries_of_a_wheel_are_its_files_with_the_ending_of_a_shared_object() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path in ("a/b.so", "c.cpython-311-x86_64-linux-gnu.so", "d.py", "e.so.12", "f.sonnet"):
            archive.writestr(path, b"")

    assert libraries(content.getvalue()) == (
        "a/b.so",
        "c.cpython-311-x86_64-linux-gnu.so",
        "e.so.12",
    )
