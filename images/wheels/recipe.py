"""Decides how a wheel is compiled for an image, and names it by a hash of all that it depends on.

Pure: uses no engine and no network.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from images.config.names import Arch
from images.config.paths import TEMPLATES
from images.config.schema import Matrix, SourceRow
from images.errors import UserError, command, failed, wrong
from images.host.hashing import sha256
from images.planning.image import Image, Pin

FOLDER = TEMPLATES / "wheel"
_METHOD = 1
"""Version of the builder; increased when a change of the builder changes the wheels it makes."""
_GIB = 1024**3


class NvccProvider(StrEnum):
    """Where nvcc comes from. templates/wheel/ has a partial for each, under this name."""

    WHEELS = "wheels"
    DEBIAN = "debian"
    IMAGE = "image"
    """NVIDIA's devel image."""
    NONE = "none"
    """No code for GPUs is compiled."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a package is compiled for an image: everything that its wheel depends on."""

    package: str
    """Its row under `sources` in the matrix."""
    distribution: str
    version: str
    sdist: str
    """sha256 of the source archive."""
    environment: Mapping[str, str]
    """Variables for its setup.py."""
    torch: str
    wheel_cuda: str
    cxx11_abi: bool
    python: str
    base: str
    """Its name in the matrix."""
    gcc: int
    """Major of the base's compiler."""
    provider: NvccProvider
    toolkit: str
    """The CUDA version of nvcc, such as `12.6`; empty if no GPU code is compiled."""
    parts: tuple[str, ...]
    """What to get from the provider: requirements, the name of an image, or a Debian suite."""
    archs: tuple[str, ...]
    """`sm_90` and the like: machine code for these."""
    ptx: tuple[str, ...] = ()
    cpu: str = ""
    """The x86-64 level of its code for the host; empty: what its setup.py chooses."""
    patch: str = ""
    """sha256 of the patch for its source; empty if there is none."""
    job_memory: int = 2
    """GiB that one compiler process needs at most. No part of the key."""

    @property
    def key(self) -> str:
        """Return the name of the wheel in the wheel cache: PACKAGE-VERSION-HASH."""
        inputs: dict[str, Any] = {}
        for name, value in asdict(self).items():
            # Our name for the package is in the key below. The memory of a job limits only how many
            # compile at a time. Neither changes what is in the wheel.
            if name in ("package", "job_memory"):
                continue
            # Fields that were added later count only if they are set: older wheels keep their keys.
            if name in ("cpu", "patch") and not value:
                continue
            inputs[name] = value
        # The builder itself: its version, and the lock of the tools with which it compiles.
        inputs["method"] = _METHOD
        inputs["tools"] = (FOLDER / "build.txt").read_text()
        digest = sha256(json.dumps(inputs, sort_keys=True).encode())
        return f"{self.package}-{self.version}-{digest[:16]}"

    @property
    def toolkit_home(self) -> str:
        """Return the folder of the CUDA toolkit in the builder; empty if there is no toolkit."""
        return f"/usr/local/cuda-{self.toolkit}" if self.toolkit else ""


def recipe_for(image: Image, package: str, matrix: Matrix) -> Recipe:
    """Return how a package is compiled for an image: everything that its wheel depends on.

    `package` is a name of `sources` in matrix.yaml. Raises UserError, with the reason, if it can't
    be compiled for this image.
    """
    source = matrix.sources.get(package)
    if source is None:
        known = ", ".join(matrix.sources) or "nothing"
        cause = f"is no package that truetag can compile: `sources` in matrix.yaml has {known}"
        then = (
            f"name one of these, or add `sources.{package}` with the sha256 of its source archive "
            "to matrix.yaml"
        )
        raise wrong(package, cause, then)

    version = _version(image, package, source)
    # `source.nvcc`: whether the package has GPU code. Without, it needs no nvcc and no wheels of a
    # toolkit, and has no architectures.
    archs: tuple[Arch, ...] = ()
    nvcc = Nvcc(NvccProvider.NONE, ())
    toolkit = ""
    if source.nvcc:
        archs = _architectures(image, package, source)
        nvcc = _nvcc(image, matrix)
        toolkit = str(image.toolkit_cuda)
    # PTX of the newest architecture also runs on GPUs that are newer than all of them.
    ptx = archs[-1:] if source.ptx else ()
    torch = image.pin("torch")
    torch_version = torch.version if torch else ""
    patch_digest = ""
    if source.patch:
        patch_digest = sha256(patch_of(source))
    return Recipe(
        package=package,
        distribution=source.distribution or package,
        version=version,
        sdist=source.releases[version],
        environment=_environment(source, archs),
        torch=torch_version,
        wheel_cuda=str(image.wheel_cuda),
        cxx11_abi=image.cxx11_abi,
        python=str(image.python),
        base=image.base.key,
        gcc=matrix.bases[image.base.key].gcc,
        provider=nvcc.provider,
        toolkit=toolkit,
        parts=nvcc.parts,
        archs=tuple(map(str, archs)),
        ptx=tuple(map(str, ptx)),
        cpu=source.cpu,
        patch=patch_digest,
        job_memory=source.job_memory,
    )


def patch_of(source: SourceRow) -> bytes:
    """Return the patch that is applied to a package's source before it is compiled."""
    return (FOLDER / "patches" / source.patch).read_bytes()


def _version(image: Image, package: str, source: SourceRow) -> str:
    """Return the release of a package to compile: the one that the image pins, else the newest.

    `source` is the package's entry in matrix.yaml: the torch releases that it compiles on, and the
    sha256 of the source archive of each of its releases. Raises UserError if the package does not
    compile on the image's torch, or if the matrix has no source archive of the pinned release.
    """
    torch = image.pin("torch")
    if torch and not SpecifierSet(source.torch).contains(torch.version, prereleases=True):
        cause = (
            f"{package} compiles on torch {source.torch} (`sources.{package}.torch` in "
            f"matrix.yaml), but the image has torch {torch.version}"
        )
        then = f"compile it for an image with torch {source.torch}: `{command('plan')}` lists them"
        raise wrong(f"{package} for {image.name}", cause, then)
    pin = image.pin(source.distribution or package)
    version = pin.version if pin else max(source.releases, key=Version)
    if version not in source.releases:
        releases = ", ".join(source.releases)
        cause = (
            f"the image pins {package} {version}, and `sources.{package}.releases` in matrix.yaml "
            f"has only {releases}"
        )
        then = f"add {version} there, with the sha256 of its source archive; or pin one of these"
        raise wrong(f"{package} for {image.name}", cause, then)
    return version


def _architectures(image: Image, package: str, source: SourceRow) -> tuple[Arch, ...]:
    """Return the GPU architectures of an image that a package can be compiled for, ascending.

    They are those from the minimum on that `source`, the package's entry in matrix.yaml, names.
    Raises UserError if there is none.
    """
    minimum = Arch.parse(source.minimum_arch)
    archs = tuple(arch for arch in image.archs if arch >= minimum)
    if not archs:
        image_archs = " ".join(map(str, image.archs))
        cause = (
            f"{package} compiles for {minimum} and newer GPUs (`sources.{package}.minimum_arch` in "
            f"matrix.yaml), but the image is for {image_archs}"
        )
        then = (
            f"compile it for an image that has {minimum} or newer: `{command('plan')}` lists them"
        )
        raise wrong(f"{package} for {image.name}", cause, then)
    return archs


def _environment(source: SourceRow, archs: Sequence[Arch]) -> dict[str, str]:
    """Return the environment variables with which a package's setup.py is run.

    They stand in matrix.yaml (`source`). GPU architectures are filled in: `{numbers}` becomes
    `80;90`, for example, and `{capabilities}` becomes `8.0;9.0`.
    """
    numbers = ";".join(f"{arch.major}{arch.minor}" for arch in archs)
    capabilities = ";".join(arch.capability for arch in archs)
    environment = {}
    for name, value in sorted(source.environment.items()):
        value = value.replace("{numbers}", numbers)
        environment[name] = value.replace("{capabilities}", capabilities)
    return environment


class Nvcc(NamedTuple):
    """Where the compiler for GPU code comes from."""

    provider: NvccProvider
    parts: tuple[str, ...]  # see Recipe.parts


def _nvcc(image: Image, matrix: Matrix) -> Nvcc:
    """Return where the nvcc of an image's CUDA toolkit comes from: wheels, Debian or NVIDIA's
    image.

    With it are returned the parts to get there: requirements of wheels, a Debian suite or the name
    of an image. Raises UserError if the matrix names no provider for this toolkit.
    """
    toolkit = matrix.toolkits[str(image.toolkit_cuda)]
    # `devel` are the wheels with the compiler and its headers.
    if toolkit.devel:
        return Nvcc(NvccProvider.WHEELS, (*toolkit.parts, *toolkit.devel))
    if toolkit.compiler is None:
        reason = (
            f"`toolkits.{image.toolkit_cuda}` in matrix.yaml has neither `devel` nor `compiler`"
        )
        then = (
            "add `compiler: {image: REFERENCE}` there, with an image of nvidia/cuda for CUDA "
            f"{image.toolkit_cuda} that has -devel in its tag; or compile it for an image of "
            "another CUDA"
        )
        raise no_nvcc(image, reason, then)
    if toolkit.compiler.debian:
        return Nvcc(NvccProvider.DEBIAN, (toolkit.compiler.debian,))
    return Nvcc(NvccProvider.IMAGE, (toolkit.compiler.image,))


def no_nvcc(image: Image, reason: str, then: str) -> UserError:
    """Return the error that there is no nvcc for an image's CUDA toolkit here."""
    cause = f"there is no nvcc for CUDA {image.toolkit_cuda} here: {reason}"
    return failed(str(image.name), cause, then)


def pins_of_torch_layer(image: Image) -> tuple[Pin, ...]:
    """Return the pins of an image's lowest layer, torch's, on which a new wheel is compiled."""
    return tuple(pin for pin in image.pins if pin.layer == image.layers[0])


def jobs_for(recipe: Recipe, cpus: int, memory: int) -> int:
    """Return how many compilers may run at once on a machine with `memory` bytes; at least 1.

    Each needs a core, and the memory that the package's largest source file takes to compile.
    """
    return max(1, min(cpus, memory // (recipe.job_memory * _GIB)))
