"""The wheel builder's build context: stages, locks, source archive, offline."""

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


def made(wanted: Image, recipe: Recipe, base: BaseContext = BASE, **options: Any) -> Context:
    cache = Path("/nowhere")
    given = WheelOptions(
        out=cache, facts=SOURCES.facts, cache=cache, locks=CHECKOUT.locks, **options
    )
    return builder_context(wanted, recipe, base, given, host={"host/env": b""}, jobs=2)


def context(name: str, package: str) -> dict[str, str]:
    files = made(image(name), recipe_of(name, package))
    return {path: content.decode() for path, content in files.items() if isinstance(content, bytes)}


def test_the_builder_is_the_devel_images_stages_with_the_shim() -> None:
    files = context("cu130-torch211-sm90", "causal-conv1d")
    dockerfile = files["Dockerfile"]
    stages = [line for line in dockerfile.splitlines() if line.startswith("FROM")]
    expected = "system tools cuda torch toolkit compiler builder audit".split()
    assert [line.split(" AS ")[1] for line in stages] == expected
    assert "toolkit.sh /opt/venv/bin/python 13.0 devel" in dockerfile
    assert "shim.sh /usr/local/cuda-13.0" in dockerfile
    assert "MAX_JOBS=2 sh /run/recipe/compile.sh" in dockerfile
    assert "export TRUETAG_ARCHS=90\n" in files["recipe/env"]
    assert "export TORCH_CUDA_ARCH_LIST=9.0\n" in files["recipe/env"]
    assert recipe_of().sdist in files["recipe/source.txt"]
    assert "nvidia-cuda-nvcc==13.0.88" in files["locks/toolkit.txt"]


def test_the_torch_layer_is_the_images_own_byte_for_byte() -> None:
    """So that the engine has it already where the image was built."""
    golden = (ROOT / "tests/golden/cu130-torch211-devel.Dockerfile").read_text()
    ours = context("cu130-torch211-sm90", "causal-conv1d")["Dockerfile"]
    for name in ("cuda", "torch"):
        layer = (
            next(part for part in golden.split("# ---- ") if part.startswith(f"{name}:"))
            .partition("\n")[2]
            .strip()
        )
        assert layer in ours


@pytest.mark.parametrize(
    ("name", "package", "holds", "lacks"),
    cases(__file__, "holds"),
    ids=[
        "no nvcc",
        "nvcc of NVIDIA's image",
        "nvcc of Debian's packages",
        "a level of processors and a patch",
    ],
)
def test_a_builder_has_what_its_recipe_asks_for(
    name: str, package: str, holds: list[str], lacks: list[str]
) -> None:
    files = context(name, package)
    text = files["Dockerfile"] + files["recipe/env"] + files.get("recipe/source.patch", "")
    assert all(one in text for one in holds) and not any(one in text for one in lacks)
    assert "recipe/host.sh" in files and ("recipe/source.patch" in files) is (
        package == "colossalai"
    )


def test_rendered_builders_pass_hadolint(tmp_path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    for name, package in (("cu130-torch211-sm90", "causal-conv1d"), ("cu128-torch28", "deepspeed")):
        file = tmp_path / "Dockerfile"
        file.write_text(context(name, package)["Dockerfile"])
        found = subprocess.run(
            [str(hadolint), str(file)], capture_output=True, text=True, check=False
        )
        assert found.returncode == 0 and not found.stdout, found.stdout + found.stderr


def test_a_source_archive_is_taken_from_the_folder_by_its_hash(tmp_path: Path) -> None:
    archive = tmp_path / "causal_conv1d-1.7.0.tar.gz"
    archive.write_bytes(b"source")
    recipe = replace(recipe_of(), sdist=sha256(b"source"))
    assert (
        made(image("cu130-torch211"), recipe, sdists=tmp_path)[f"recipe/{archive.name}"] == archive
    )
    with pytest.raises(UserError, match="holds no source archive of causal-conv1d"):
        made(image("cu130-torch211"), recipe_of(), sdists=tmp_path)


def test_a_toolkit_that_nobody_locked_is_told() -> None:
    with pytest.raises(UserError, match="nox -s lock -- cu130-torch211-devel"):
        made(image("cu130-torch211"), replace(recipe_of(), parts=("nvidia-cuda-nvcc==1.2.3",)))


def test_the_libraries_of_a_wheel_are_named() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in ("a/b.so", "c.cpython-311-x86_64-linux-gnu.so", "d.py", "e.so.12", "f.sonnet"):
            archive.writestr(name, b"")
    assert libraries(content.getvalue()) == (
        "a/b.so",
        "c.cpython-311-x86_64-linux-gnu.so",
        "e.so.12",
    )
