"""What a wheel that is compiled here depends on, and the key that names it. Pure: no engine, no network."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from images.config.names import Arch
from images.config.paths import TEMPLATES
from images.config.schema import Matrix, SourceRow
from images.errors import UserError, failed, wrong
from images.host.hashing import sha256
from images.planning.image import Image, Pin

FOLDER = TEMPLATES / "wheel"
_METHOD = 1
"""Increased when the builder changes in a way that changes what comes out of it."""
_GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one package is compiled for one image: all that its wheel depends on."""

    package: str
    """Its row under `sources` in the matrix."""
    distribution: str
    version: str
    sdist: str
    """sha256 of the source archive."""
    environment: Mapping[str, str]
    """What its setup.py is told."""
    torch: str
    wheel_cuda: str
    cxx11_abi: bool
    python: str
    base: str
    """Its name in the matrix."""
    gcc: int
    """Major of the base's compiler."""
    provider: str
    """Where nvcc comes from: `wheels`, `image`, `debian`; `none` where no GPU code is compiled."""
    toolkit: str
    parts: tuple[str, ...]
    """What the provider is asked for: requirements, an image, a Debian suite."""
    archs: tuple[str, ...]
    """`sm_90` and the like: machine code for these."""
    ptx: tuple[str, ...] = ()
    cpu: str = ""
    """The x86-64 level of its code for the host; empty: what its setup.py asks for."""
    patch: str = ""
    """sha256 of what is changed in its source; empty: nothing."""
    job_memory: int = 2
    """GiB that one compiler needs at most. No part of the key."""

    @property
    def key(self) -> str:
        """Names the wheel: PACKAGE-VERSION-HASH."""
        depends = {
            name: value
            for name, value in asdict(self).items()
            if name not in ("package", "job_memory")
        }
        # A wheel that neither concerns keeps the key that it had before there were such.
        depends = {
            name: value for name, value in depends.items() if value or name not in ("cpu", "patch")
        }
        depends |= {"method": _METHOD, "tools": (FOLDER / "build.txt").read_text()}
        digest = sha256(json.dumps(depends, sort_keys=True).encode())
        return f"{self.package}-{self.version}-{digest[:16]}"

    @property
    def home(self) -> str:
        """Where the toolkit lies in the builder; empty where there is none."""
        return f"/usr/local/cuda-{self.toolkit}" if self.toolkit else ""


def recipe_for(image: Image, package: str, matrix: Matrix) -> Recipe:
    """How a package is compiled for an image. Raises UserError: it can't be, with the reason."""
    row = matrix.sources.get(package)
    if row is None:
        cause = f"`sources` has {', '.join(matrix.sources) or 'nothing'}"
        then = "name it under `sources` in matrix.yaml, with the hash of its source archive"
        raise wrong(package, f"is no package that is compiled here: {cause}", then)
    version = _version(image, package, row)
    archs = (
        tuple(arch for arch in image.archs if arch >= Arch.parse(row.minimum_arch))
        if row.nvcc
        else ()
    )
    if row.nvcc and not archs:
        minimum = Arch.parse(row.minimum_arch)
        cause = (
            f"compiles for {minimum} and newer, the image is for {' '.join(map(str, image.archs))}"
        )
        raise wrong(f"{package} for {image.name}", cause, "leave it out of this image")
    provider, parts = _provider(image, matrix) if row.nvcc else ("none", ())
    torch = image.pin("torch")
    numbers = ";".join(f"{arch.major}{arch.minor}" for arch in archs)
    capabilities = ";".join(arch.capability for arch in archs)
    environment = {
        key: row.environment[key]
        .replace("{numbers}", numbers)
        .replace("{capabilities}", capabilities)
        for key in sorted(row.environment)
    }
    return Recipe(
        package=package,
        distribution=row.distribution or package,
        version=version,
        sdist=row.releases[version],
        environment=environment,
        torch=torch.version if torch else "",
        wheel_cuda=str(image.wheel_cuda),
        cxx11_abi=image.cxx11_abi,
        python=str(image.python),
        base=image.base.key,
        gcc=matrix.bases[image.base.key].gcc,
        provider=provider,
        toolkit=str(image.toolkit_cuda) if row.nvcc else "",
        parts=parts,
        archs=tuple(map(str, archs)),
        ptx=tuple(map(str, archs[-1:])) if row.ptx else (),
        cpu=row.cpu,
        patch=sha256(patch_of(row)) if row.patch else "",
        job_memory=row.job_memory,
    )


def patch_of(row: SourceRow) -> bytes:
    """What is changed in a package's source."""
    return (FOLDER / "patches" / row.patch).read_bytes()


def _version(image: Image, package: str, row: SourceRow) -> str:
    torch = image.pin("torch")
    if torch and not SpecifierSet(row.torch).contains(torch.version, prereleases=True):
        cause = f"compiles on torch {row.torch} (`sources.{package}.torch`), the image has {torch.version}"
        raise wrong(f"{package} for {image.name}", cause, "leave it out of this image")
    pin = image.pin(row.distribution or package)
    version = pin.version if pin else max(row.releases, key=Version)
    if version not in row.releases:
        cause = (
            f"the image pins {version}, `sources.{package}.releases` has {', '.join(row.releases)}"
        )
        then = "add that release with the sha256 of its source archive to matrix.yaml"
        raise wrong(f"{package} for {image.name}", cause, then)
    return version


def _provider(image: Image, matrix: Matrix) -> tuple[str, tuple[str, ...]]:
    """Who has an nvcc of the image's toolkit: wheels, a Debian suite, NVIDIA's image."""
    row = matrix.toolkits[str(image.toolkit_cuda)]
    if row.devel:
        return "wheels", (*row.parts, *row.devel)
    if row.compiler is None:
        raise no_nvcc(image, f"`toolkits.{image.toolkit_cuda}` in matrix.yaml names no provider")
    return (
        ("debian", (row.compiler.debian,))
        if row.compiler.debian
        else ("image", (row.compiler.image,))
    )


def no_nvcc(image: Image, why: str) -> UserError:
    then = (
        "wheels hold an nvcc from CUDA 13.0 on, Debian trixie's packages 12.4; for others connect to a registry that "
        "has NVIDIA's devel image, or `docker load` it"
    )
    return failed(
        str(image.name), f"there is no nvcc for CUDA {image.toolkit_cuda} here: {why}", then
    )


def beside(image: Image) -> tuple[Pin, ...]:
    """Pins that are installed beside the new wheel: those of torch's layer."""
    return tuple(pin for pin in image.pins if pin.layer == image.layers[0])


def jobs_for(wanted: Recipe, cpus: int, memory: int) -> int:
    """Compilers at once: a core each, and the memory that this package's largest file takes. `memory` in bytes."""
    return max(1, min(cpus, memory // (wanted.job_memory * _GIB)))
