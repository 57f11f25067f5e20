"""The build context of the wheel builder.

It has a -devel image's stages, with ccache, ninja and an nvcc that keeps to the recipe's architectures
(templates/wheel/).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from images.config import paths
from images.config.paths import TEMPLATES
from images.context import render
from images.context.labels import BaseContext
from images.context.render import Context, Stage
from images.context.templates import EPOCH, environment, step_macros
from images.errors import Problem, UserError
from images.host.hashing import sha256_of_file
from images.locking import lock_file
from images.planning.image import Image
from images.wheels import prebuilt
from images.wheels.recipe import FOLDER, Recipe


@dataclass(frozen=True, kw_only=True)
class BuilderInputs:
    """What this machine gives to a builder."""

    host: Mapping[str, bytes]
    """Files under host/ (`HostSettings.files`)."""
    jobs: int
    """Compilers at once."""
    sdists: Path | None = None
    """A folder with source archives; None: the step downloads its own."""
    wheelhouse: Path | None = None
    """A folder with the wheels that build wheels, for `offline`."""
    offline: bool = False


def context(image: Image, recipe: Recipe, base_context: BaseContext, inputs: BuilderInputs) -> Context:
    """The builder's whole build context.

    Raises UserError: no lock, no source archive of the recipe's hash, and (offline) what the wheelhouse lacks.
    """
    own = lock_file.read(image)
    locks = {"torch": render.less(own.files["torch.txt"], base_context.kept), "tools": own.files["tools.txt"]}
    if recipe.provider == "wheels":
        locks["toolkit"] = _toolkit_lock(image, recipe)
    locks["build"] = (FOLDER / "build.txt").read_bytes()
    files: Context = {f"locks/{name}.txt": content for name, content in locks.items()}
    files |= render.parted(files, "torch")
    scripts = sorted(path for path in (TEMPLATES / "scripts").iterdir() if path.is_file())
    files |= {f"scripts/{path.name}": path.read_bytes() for path in scripts}
    files |= inputs.host
    if inputs.offline:
        files |= {f"wheels/{path.name}": path for path in _stock(locks, inputs.wheelhouse)}
        files["host/env"] = render.offline_settings(files["host/env"])
    parts = [path for path in sorted(FOLDER.iterdir()) if path.suffix in (".sh", ".py")]
    files |= {f"recipe/{path.name}": path.read_bytes() for path in parts}
    if recipe.patch:
        files["recipe/source.patch"] = _patch(recipe)
    files["recipe/env"] = _variables(recipe)
    files["recipe/source.txt"] = _source(recipe)
    if archive := _archive(recipe, inputs.sdists):
        files[f"recipe/{archive.name}"] = archive
    files["Dockerfile"] = _dockerfile(image, recipe, base_context, inputs, files).encode()
    return dict(sorted(files.items()))


def _stock(locks: Mapping[str, bytes], wheelhouse: Path | None) -> Iterator[Path]:
    rows = (lock_file.parse_requirements(content, f"{name}.txt") for name, content in locks.items())
    yield from prebuilt.in_stock([package for packages in rows for package in packages], wheelhouse).values()


def _toolkit_lock(image: Image, recipe: Recipe) -> bytes:
    """The hashes of a devel toolkit's wheels, from any -devel image's lock that has these. Raises UserError."""
    for place in sorted(paths.workspace().locks.glob("*-devel*")):
        if json.loads((place / lock_file.RECORD).read_text())["alone"]["toolkit"] == list(recipe.parts):
            return (place / "toolkit.txt").read_bytes()
    devel = replace(image.name, devel=True, arch=None, profile=None)
    cause = f"no lock of a -devel image holds the devel toolkit of CUDA {recipe.toolkit}"
    raise UserError(Problem(where=str(image.name), cause=cause, then=f"`nox -s lock -- {devel}` makes one"))


def _variables(recipe: Recipe) -> bytes:
    numbers = [arch.removeprefix("sm_") for arch in recipe.archs]
    ptx = [arch.removeprefix("sm_") for arch in recipe.ptx]
    told = {
        "TORCH_CUDA_ARCH_LIST": ";".join(f"{number[:-1]}.{number[-1]}" for number in numbers),
        "FORCE_CUDA": "1",
        "CUDA_HOME": "/build/cuda",
        "TRUETAG_NVCC": f"{recipe.home}/bin/nvcc",
        "TRUETAG_ARCHS": " ".join(numbers),
        "TRUETAG_PTX": " ".join(ptx),
    }
    told = {
        **(told if recipe.home else {}),
        **({"TRUETAG_CPU": recipe.cpu} if recipe.cpu else {}),
        **recipe.environment,
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(told.items())).encode()


def _patch(recipe: Recipe) -> bytes:
    """What is changed in the source, by hash. Raises UserError if it was edited since the recipe was written."""
    for path in sorted((FOLDER / "patches").glob("*.patch")):
        if sha256_of_file(path) == recipe.patch:
            return path.read_bytes()
    cause, then = f"no patch with sha256 {recipe.patch}", "run the command again"
    raise UserError(Problem(where="templates/wheel/patches", cause=cause, then=then))


def _source(recipe: Recipe) -> bytes:
    return f"{recipe.distribution}=={recipe.version} \\\n    --hash=sha256:{recipe.sdist}\n".encode()


def _archive(recipe: Recipe, folder: Path | None) -> Path | None:
    """The source archive in a folder, by hash. Raises UserError when it isn't there."""
    if folder is None:
        return None
    for path in sorted(folder.glob("*.tar.gz")):
        if sha256_of_file(path) == recipe.sdist:
            return path
    cause = f"holds no source archive of {recipe.distribution} {recipe.version} with sha256 {recipe.sdist}"
    raise UserError(Problem(where=str(folder), cause=cause, then="`pip download --no-binary :all: --no-deps` gets it"))


def _dockerfile(image: Image, recipe: Recipe, base_context: BaseContext, inputs: BuilderInputs, files: Context) -> str:
    macros = step_macros(offline=inputs.offline)
    devel = replace(image, name=replace(image.name, devel=True))
    index = "" if inputs.offline else render.index(image)
    below = [render.libraries(index)] if f"locks/{render.LIBRARIES}.txt" in files else []
    torch = Stage(
        name="torch",
        below=below[-1].name if below else "system",
        holds=(f"torch {recipe.torch}",),
        lock=bool(render.locked_versions(files["locks/torch.txt"])),
        index=index,
        wheels_kept=False,
    )
    return (
        environment()
        .get_template("wheel/Dockerfile.j2")
        .render(
            image=devel,
            recipe=recipe,
            provider=recipe.provider,
            source=recipe.parts[0] if recipe.provider == "image" else "",
            home=recipe.home,
            base=base_context,
            user=render.USER,
            jobs=inputs.jobs,
            installer=next((Path(path).name for path in files if path.startswith("wheels/uv-")), ""),
            epoch=EPOCH,
            native_installer=False,
            **macros,
            layers=[*below, torch],
            compiler=Stage(
                name="compiler", below="torch", holds=(f"nvcc {recipe.toolkit}",), lock=False, toolkit_above=True
            ),
        )
    )
