"""The resolved image: everything the later steps need to know of one row, and nothing they must look up."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from packaging.utils import parse_wheel_filename

from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from validate import compute_capability


@dataclass(frozen=True, kw_only=True)
class Base:
    """What an image stands on: a Debian suite (or Ubuntu) with the Python it brings."""

    key: str
    reference: str
    """What a registry calls it: `debian:bookworm-slim`."""
    suite: str | None
    """The Debian suite mmdebstrap can make it from; None if only a registry has it."""
    python: Minor
    glibc: Minor
    platform: Platform = Platform.AMD64


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One package of an image, at one version."""

    name: str
    """Canonical (PEP 503) distribution name."""
    version: str
    layer: str
    """The image layer that installs it: a key of the matrix's `layers`."""
    optional: bool = False
    """An image may lack it, with a warning, where no wheel of it can be had."""
    local: str = ""
    """The local version (`cu126`) where the wheel is not the default index's."""
    compiled: bool = False
    """No index has a wheel of it: it is an official one by hash, or compiled here once (docs/wheels.md)."""
    minimum_arch: Arch | None = None
    """The oldest GPU architecture that a compiled one's code is written for; None: it has no GPU code."""
    needs: tuple[str, ...] = ()
    """What a compiled one requires beside the image's pins: the lock brings it, as no index knows of the wheel."""
    extensions: str = ""
    """The row of `sources` that makes it with its compiled extensions. The lock has it as pure Python; where that wheel
    was compiled for the image, it takes the lock's place."""

    @property
    def locked(self) -> bool:
        """Whether the lock has it: an index has a file of it that installs anywhere."""
        return not (self.optional or self.compiled)

    @property
    def lacking(self) -> str:
        """Under this name an image says that it goes without the compiled extensions."""
        return f"{self.name} extensions"

    @cached_property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}" + (f"+{self.local}" if self.local else "")


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """What an arch image goes without: device code for other GPUs (docs/arch-images.md)."""

    arch: Arch
    nvidia: bool
    alternatives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Libraries of which one alone is ever loaded, by pattern -> those that stay."""


@dataclass(frozen=True, kw_only=True)
class Prebuilt:
    """An official binary wheel outside any index: the one file that is taken for it, by its hash."""

    name: str
    version: str
    filename: str
    url: str
    sha256: str
    archs: tuple[Arch, ...] = ()
    """What it holds machine code for, as the facts say."""
    ptx: tuple[Arch, ...] = ()

    @property
    def local(self) -> str:
        """The local version in its name: +cu12torch2.7cxx11abitrue."""
        return parse_wheel_filename(self.filename)[1].local or ""

    def covers(self, arch: Arch) -> compute_capability.Fit:
        """How a GPU of `arch` runs it: `cubin`, `ptx` or `no`."""
        return compute_capability.fit(self.archs, self.ptx, arch)


def has_extensions(wheel: str) -> bool:
    """Whether a wheel is for one platform: pure Python is for any."""
    return wheel.endswith(".whl") and not wheel.endswith("-any.whl")


@dataclass(frozen=True, kw_only=True)
class Image:
    """One buildable row. Made by `plan`, read by locking, context, validation and building."""

    name: ImageName
    base: Base
    python: Minor
    toolkit_cuda: Minor
    wheel_cuda: Minor
    index: str | None
    """Address of the index that alone has this torch variant; None: the default index has it."""
    archs: tuple[Arch, ...]
    """The GPU architectures it runs on, ascending."""
    ptx: tuple[Arch, ...]
    """Architectures of which torch carries PTX (newer GPUs compile it at run time)."""
    min_driver: str
    cxx11_abi: bool
    pins: tuple[Pin, ...]
    """Every pinned package except the toolkit's, in layer order."""
    toolkit: tuple[Pin, ...]
    """The wheels that make up /usr/local/cuda-X.Y."""
    nvcc_suite: str = ""
    """Of a -devel image whose nvcc no wheel has: the Debian suite whose packages have it."""
    layers: tuple[str, ...]
    """Names of the Python layers, bottom first."""
    environment: Mapping[str, str]
    revision: str
    """Short hash of matrix and facts."""
    prebuilt: tuple[Prebuilt, ...] = ()
    warnings: tuple[str, ...] = ()
    from_source: tuple[str, ...] = ()
    """Distributions that are installed from source: pure Python that no index has as a wheel."""
    cudnn: str = ""
    """The version that torch runs with; empty: not known before it is locked."""
    overrides: tuple[str, ...] = ()
    """Exact requirements that hold against what packages require, as the matrix says."""
    waived: tuple[str, ...] = ()
    """Distributions that something requires and the image goes without, as the matrix says."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Package with kernels that it lacks, of which no known release fits its torch and CUDA -> why."""
    unproven: Mapping[str, str] = field(default_factory=dict)
    """`4bit-llama` or `4bit-llama/logits` -> why the profile's own pins put that claim out of reach."""
    pruning: Pruning | None = None
    """None: it holds device code for every architecture that its packages have."""
    entrypoint: str = ""
    """A script of templates/entrypoints that each container starts with."""
    prefix: str = ""
    """What its name begins with in an engine."""

    @property
    def local_name(self) -> str:
        """What an engine calls it."""
        return f"{self.prefix}{self.name}"

    @property
    def lock_name(self) -> str:
        """The lock it is built from: an arch image holds the same packages as its parent."""
        return str(replace(self.name, arch=None) if self.name.arch else self.name)

    @property
    def toolkit_home(self) -> str:
        return f"/usr/local/cuda-{self.toolkit_cuda}"

    def extended(self, wheels: Iterable[str]) -> dict[str, str]:
        """Distribution -> the wheel among these that has its compiled extensions, and takes the place of the lock's."""
        named = {file.split("-")[0]: file for file in wheels if has_extensions(file)}
        own = {pin.name: pin.name.replace("-", "_") for pin in self.pins if pin.extensions}
        return {name: named[stem] for name, stem in own.items() if stem in named}

    @property
    def versions(self) -> dict[str, str]:
        """Of its pins, and of cuDNN where that is known."""
        return {pin.name: pin.version for pin in self.pins} | (
            {"cudnn": self.cudnn} if self.cudnn else {}
        )

    def pin(self, name: str) -> Pin | None:
        return next((pin for pin in self.pins if pin.name == name), None)
