"""The resolved image: all that locking, rendering and validation need to know of one image."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from packaging.utils import canonicalize_name, parse_wheel_filename

from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from validate import compute_capability


@dataclass(frozen=True, kw_only=True)
class Base:
    """The base image: a Debian or Ubuntu release with its own Python, or one of the user's own."""

    key: str
    reference: str
    """Its name in a registry: `debian:bookworm-slim`."""
    suite: str | None
    """The Debian suite from which mmdebstrap can make it; None: only a registry has it."""
    python: Minor
    glibc: Minor
    """Its glibc; of a custom base, the oldest that it may have. Wheels are locked for this one."""
    custom: bool = False
    """Whether it is the user's own: what is in it is read when an image is built on it."""
    platform: Platform = Platform.AMD64


@dataclass(frozen=True, kw_only=True)
class PrivateIndex:
    """An index beside the default one, which alone has some packages."""

    name: str
    url: str
    """Its address, without a login."""

    def __str__(self) -> str:
        """Return it as messages name it."""
        return f"index {self.name} ({self.url})"

    @property
    def login_variables(self) -> tuple[str, str]:
        """The names of uv's variables for the user and the password of this index."""
        beginning = f"UV_INDEX_{re.sub('[^A-Z0-9]', '_', self.name.upper())}"
        return f"{beginning}_USERNAME", f"{beginning}_PASSWORD"


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A package of an image at one version."""

    name: str
    """Canonical (PEP 503) distribution name."""
    version: str
    layer: str
    """The image layer that installs it: a key of the matrix's `layers`."""
    optional: bool = False
    """Whether an image may lack it, with a warning, if there is no wheel of it."""
    local: str = ""
    """The local version (`cu126`) of a wheel that the default index does not have."""
    compiled: bool = False
    """Whether no index has a wheel of it.

    It is then an official wheel, taken by hash, or one that was compiled here (docs/wheels.md)."""
    minimum_arch: Arch | None = None
    """The oldest GPU architecture that a compiled package has code for; None: no GPU code."""
    needs: tuple[str, ...] = ()
    """What a compiled package requires and the image does not pin.

    The lock has it: a resolver can't find out, as no index has the wheel."""
    extension_source: str = ""
    """The row of matrix.yaml's `sources` that compiles it with extensions; empty: it has none.

    The lock has it as pure Python. A wheel that was compiled for the image replaces that."""
    index: PrivateIndex | None = None
    """The private index that alone has it; None: the default index has it.

    The lock names one wheel of it, which the build gets as a file."""

    @property
    def wheel_stem(self) -> str:
        """The beginning of the file names of its wheels: `flash_attn` for flash-attn."""
        return self.name.replace("-", "_")

    @property
    def locked(self) -> bool:
        """Whether the lock has it, because an index has a file of it that installs anywhere."""
        return not (self.optional or self.compiled)

    @property
    def source(self) -> str:
        """The row of matrix.yaml's `sources` that compiles it, if the matrix has such a row.

        It is the row for its extensions if it can have any, else the row with its own name."""
        return self.extension_source or self.name

    @property
    def name_of_extensions(self) -> str:
        """The name of its compiled extensions in an image's label of what the image lacks."""
        return f"{self.name} extensions"

    @cached_property
    def requirement(self) -> str:
        """The exact requirement: `torch==2.7.1+cu128`."""
        local = f"+{self.local}" if self.local else ""
        return f"{self.name}=={self.version}{local}"


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """What the pruner takes out of an arch image: code for other GPUs (docs/arch-images.md)."""

    arch: Arch
    nvidia: bool
    """Whether NVIDIA's own libraries are pruned, too."""
    alternatives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Pattern of libraries of which only one is ever loaded -> the files that stay."""


@dataclass(frozen=True, kw_only=True)
class Prebuilt:
    """An official wheel that no index has: one file, known by its hash."""

    name: str
    version: str
    filename: str
    url: str
    sha256: str
    archs: tuple[Arch, ...] = ()
    """The GPU architectures that it has machine code for, as facts.yaml says."""
    ptx: tuple[Arch, ...] = ()

    @property
    def local(self) -> str:
        """The local version in its file name, without the plus: `cu12torch2.7cxx11abitrue`."""
        return parse_wheel_filename(self.filename)[1].local or ""

    def covers(self, arch: Arch) -> compute_capability.Fit:
        """Return how a GPU of `arch` runs it: `cubin` (machine code), `ptx`, or `no`."""
        return compute_capability.fit(self.archs, self.ptx, arch)


def stem_of(wheel: str) -> str:
    """Return the beginning of a wheel's file name, its package: `flash_attn`.

    As `Pin.wheel_stem` writes it: some tools keep capitals and dots of a name in the file's.
    """
    return canonicalize_name(wheel.split("-")[0]).replace("-", "_")


def has_extensions(wheel: str) -> bool:
    """Return whether a wheel is for one platform, by its file name. Pure Python is for any."""
    return wheel.endswith(".whl") and not wheel.endswith("-any.whl")


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image that can be built. The plan makes it; locking, rendering and validation read it."""

    name: ImageName
    base: Base
    python: Minor
    toolkit_cuda: Minor
    wheel_cuda: Minor
    index: str | None
    """The address of the only index with this torch variant; None: the default index has it."""
    archs: tuple[Arch, ...]
    """The GPU architectures it runs on, ascending."""
    ptx: tuple[Arch, ...]
    """The architectures that torch has PTX of, which drivers of newer GPUs compile."""
    min_driver: str
    cxx11_abi: bool
    pins: tuple[Pin, ...]
    """Every pinned package except the toolkit's, in layer order."""
    toolkit: tuple[Pin, ...]
    """The wheels that make up /usr/local/cuda-X.Y."""
    nvcc_suite: str = ""
    """The Debian suite that a -devel image takes nvcc from; empty: none, or wheels have it."""
    layers: tuple[str, ...]
    """Names of the Python layers, bottom first."""
    environment: Mapping[str, str]
    revision: str
    """Short hash of matrix and facts."""
    prebuilt: tuple[Prebuilt, ...] = ()
    warnings: tuple[str, ...] = ()
    from_source: tuple[str, ...] = ()
    """Distributions that are built while they are installed, if the lock has them: pure Python
    without a wheel."""
    cudnn: str = ""
    """The version of cuDNN that torch loads; empty: not known before it is locked."""
    overrides: tuple[str, ...] = ()
    """Exact requirements that the matrix sets whatever packages require."""
    waived: tuple[str, ...] = ()
    """Distributions that a package requires and that the matrix leaves out."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Packages with kernels of which no known release fits its torch and CUDA -> why."""
    unproven: Mapping[str, str] = field(default_factory=dict)
    """Claims (`4bit-llama` or `4bit-llama/logits`) that its own pins make impossible -> why."""
    pruning: Pruning | None = None
    """None: nothing is pruned, and it has all the device code of its packages."""
    entrypoint: str = ""
    """The script of templates/entrypoints with which each container starts; empty: none."""
    prefix: str = ""
    """The beginning of its name in an engine, as the matrix sets it."""
    reserved: tuple[str, ...] = ()
    """Packages that a private index alone has, and that it does not pin.

    If something requires one of them, the image can't be locked: the default index is no place to
    take it from."""

    @property
    def local_name(self) -> str:
        """Its name in an engine."""
        return f"{self.prefix}{self.name}"

    @property
    def lock_name(self) -> str:
        """The name of its lock. An arch image has that of the image for all architectures."""
        return str(replace(self.name, arch=None))

    @property
    def toolkit_home(self) -> str:
        return f"/usr/local/cuda-{self.toolkit_cuda}"

    def choose_compiled_wheels(self, wheels: Iterable[str]) -> dict[str, str]:
        """Return the wheels that replace pure-Python packages of the lock: distribution -> file.

        `wheels` are the names of the files to choose from. A wheel is chosen if it has compiled
        extensions, and if the matrix lets this image have its package with extensions. Of several
        wheels of a package, the last one counts.
        """
        # Beginning of a file's name, as in `Pin.wheel_stem` (`flash_attn`) -> the file.
        compiled_wheels = {stem_of(file): file for file in wheels if has_extensions(file)}
        chosen = {}
        for pin in self.pins:
            # A package that this image can only have as pure Python has no `extension_source`.
            if pin.extension_source and pin.wheel_stem in compiled_wheels:
                chosen[pin.name] = compiled_wheels[pin.wheel_stem]
        return chosen

    @property
    def versions(self) -> dict[str, str]:
        """The versions of its pins by name, of `cudnn` if that is known, and its `processor`.

        The processor is the machine as the kernel calls it: `aarch64`.
        """
        versions = {pin.name: pin.version for pin in self.pins}
        versions["processor"] = self.name.platform.machine
        if self.cudnn:
            versions["cudnn"] = self.cudnn
        return versions

    def official_wheel(self, name: str) -> Prebuilt | None:
        """Return the official wheel of a package that no index has; None if there is none."""
        for wheel in self.prebuilt:
            if wheel.name == name:
                return wheel
        return None

    def pin(self, name: str) -> Pin | None:
        """Return the pin of a package; None if the image does not pin it."""
        for pin in self.pins:
            if pin.name == name:
                return pin
        return None
