"""A candidate: an image before the rules judge it, with all that is known of its parts. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from urllib.parse import quote

from images.config.facts import (
    CudaFacts,
    DeviceCode,
    Facts,
    PackageFacts,
    PrebuiltRelease,
    PrebuiltWheel,
    TorchFacts,
    TorchVariant,
)
from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.config.schema import Matrix, ToolkitRow
from images.planning.image import Base, Prebuilt, PrivateIndex

PROFILE_LAYER = "profile"
"""The layer of a profile's own packages: above those that images share, below the last one."""


@dataclass(frozen=True, kw_only=True)
class ResolvedProfile:
    """A profile's settings for one torch, with those that it inherits; empty for no profile."""

    pins: Mapping[str, str]
    optional: Mapping[str, str]
    """Optional package -> version: the image has it if nothing speaks against it."""
    waived: Mapping[str, str]
    """Distribution that packages require and the image lacks, or has in another version -> why."""
    extensions: tuple[str, ...]
    """Rows of `sources` that make the profile's packages with their compiled extensions."""
    environment: Mapping[str, str]
    entrypoint: str


def resolve_profile(matrix: Matrix, name: str | None, minor: Minor) -> ResolvedProfile:
    """Return a profile's settings for a torch minor, merged with those of the profile it extends.

    A profile is a set of packages and settings for a framework; `name` is its key in the matrix. If
    both profiles set the same thing, the named one counts. Without a name, all settings are empty.
    Raises KeyError if the matrix has no such profile.
    """
    torch = str(minor)
    pins: dict[str, str] = {}
    optional: dict[str, str] = {}
    waived: dict[str, str] = {}
    extensions: list[str] = []
    environment: dict[str, str] = {}
    entrypoint = ""

    # The profile that is extended comes first, so that later settings replace its own.
    profiles = matrix.with_parent(name) if name else ()
    for profile in profiles:
        pins |= profile.stacks.get(torch, {})
        waived |= profile.waived.get(torch, {})
        environment |= profile.environment
        if profile.entrypoint:
            entrypoint = profile.entrypoint
        for package, version in profile.optional.items():
            # matrix.yaml has one version for every torch, or a version for each torch minor.
            optional[package] = version if isinstance(version, str) else version.get(torch, "")
        for row in profile.extensions:
            if row not in extensions:
                extensions.append(row)

    return ResolvedProfile(
        pins=pins,
        # Leave out packages without a version for this torch.
        optional={package: version for package, version in optional.items() if version},
        waived=waived,
        extensions=tuple(extensions),
        environment=environment,
        entrypoint=entrypoint,
    )


class Topic(StrEnum):
    """What a warning is about. Warnings of one topic are shown together."""

    SILENT = "silently wrong results in ordinary training"
    SILENT_IF_RARE = "silently wrong results at rare shapes or in rare programs"
    LIMITS = "something that these releases cannot do together"
    LACKING = "an optional package, or a compiled extension, that the image lacks"
    VERSIONS = "another version than a package requires, or none"
    GPU_CODE = "a package lacks code for some of the GPUs, or which code it has was not read"
    CUDA = "a part for another CUDA than its neighbour's"
    UNKNOWN = "a package of which nothing is known"
    PRIVATE = "packages of a private index"


@dataclass(frozen=True)
class Finding:
    """What a rule says of a candidate: a reason to refuse it, or else a warning."""

    text: str
    topic: Topic | None = None
    """What a warning is about; None: it is no warning, but a reason to refuse the image."""


def warn(topic: Topic, text: str) -> Finding:
    """Return a warning."""
    return Finding(text, topic)


def refuse(text: str) -> Finding:
    """Return a reason to refuse the image."""
    return Finding(text)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An image before the rules judge it. Its torch has a wheel, and the matrix a stack for it."""

    name: ImageName
    matrix: Matrix
    facts: Facts
    base: Base
    torch: str
    torch_facts: TorchFacts
    wheel_cuda: Minor
    """The CUDA that torch's wheel was built for."""
    variant: TorchVariant
    toolkit: ToolkitRow | None
    toolkit_facts: CudaFacts | None
    requested_archs: tuple[Arch, ...]
    """The GPU architectures that name or matrix ask for; empty: all that `binaries` cover."""
    profile: ResolvedProfile
    pins: Mapping[str, str]
    """Package -> version, of all that the image is to have."""
    optional: frozenset[str]
    """Pinned packages that the image may lack."""
    declined: Mapping[str, tuple[str, ...]]
    """`NAME VERSION` of each optional package that this image can't have -> the reasons."""
    overrides: Mapping[str, str]
    """Exact requirement that is installed whatever packages require -> why."""

    @property
    def cudnn(self) -> str:
        """The cuDNN that torch will load: an override's, else its wheel's; empty if unknown."""
        for requirement in self.overrides:
            if requirement.startswith("nvidia-cudnn-"):
                return requirement.partition("==")[2]
        return self.variant.cudnn

    @cached_property
    def private_indexes(self) -> Mapping[str, PrivateIndex]:
        """Package -> the private index that has it. Some of these packages are not in the image."""
        indexes = {}
        for index_name, row in self.matrix.indexes.items():
            for package in row.packages:
                indexes[package] = PrivateIndex(name=index_name, url=row.url)
        return indexes

    @cached_property
    def package_facts(self) -> Mapping[str, PackageFacts]:
        """The rows of pinned packages under `packages` in facts.yaml, as far as it has them."""
        known = {}
        for name, version in self.pins.items():
            row = self.facts.packages.get(name, {}).get(version)
            if row:
                known[name] = row
        return known

    @cached_property
    def binaries(self) -> Mapping[str, DeviceCode]:
        """The device code of each part that decides on which GPUs the image runs at all.

        The keys are names for messages: `torch 2.7.1 cu128`. The parts are torch, the library that
        bitsandbytes loads, and overrides that replace one of torch's own libraries. An override is
        an exact version that is installed, whatever packages require
        (`nvidia-cudnn-cu12==9.15.1.9`).
        """
        parts: dict[str, DeviceCode] = {
            f"torch {self.torch} cu{self.wheel_cuda.digits}": self.variant
        }
        version = self.pins.get("bitsandbytes", "")
        bitsandbytes = self.facts.bitsandbytes.get(version)
        # bitsandbytes has a library for each of several CUDA versions, and loads one of them.
        library_cuda = bitsandbytes.library_for(self.wheel_cuda) if bitsandbytes else None
        if bitsandbytes and library_cuda:
            name = f"bitsandbytes {version} cu{library_cuda.digits}"
            parts[name] = bitsandbytes.libraries[str(library_cuda)]
        for requirement in self.overrides:
            # facts.yaml lacks libraries whose device code nobody has measured.
            code = self.facts.device_code.get(requirement)
            if code:
                parts[requirement] = code
        return parts

    @cached_property
    def compilers(self) -> Mapping[str, Collection[str]]:
        """Programs that compile GPU code at run time -> the compute capabilities they know."""
        return self.facts.run_time_compilers(self.pins.get("triton", ""), self.wheel_cuda)

    @cached_property
    def supported_archs(self) -> tuple[Arch, ...]:
        """The GPU architectures of the image, ascending: the requested ones if there are any.

        Otherwise these are the GPUs for which torch's wheel and all other `binaries` have machine
        code, and which nvcc and the run-time compilers know.
        """
        if self.requested_archs:
            return self.requested_archs

        # Compute capabilities, such as `9.0`.
        capabilities = set(self.variant.archs)
        if self.name.platform is Platform.ARM64:
            # The list of torch's wheel lacks GPUs of ARM boards, such as sm_121 (GB10). They run
            # its code for a related GPU (sm_120).
            for capability, board in self.facts.arm64.boards.items():
                if not board.unfit:
                    capabilities.add(capability)

        # Leave out GPUs that one of the compilers does not know: Triton's and CUDA's at run time,
        # and nvcc. If nothing is known of the toolkit, its nvcc is taken to know all.
        for known_capabilities in self.compilers.values():
            capabilities.intersection_update(known_capabilities)
        nvcc_archs = self.toolkit_facts.nvcc_archs if self.toolkit_facts else self.variant.archs
        capabilities.intersection_update(nvcc_archs)

        supported = []
        for arch in sorted(Arch.parse(capability) for capability in capabilities):
            if all(code.covers(arch) == "cubin" for code in self.binaries.values()):
                supported.append(arch)
        return tuple(supported)

    def find_official_wheel(self, name: str, version: str) -> Prebuilt | None:
        """Return the official wheel of a package that fits this image; None if there is none.

        Some projects publish wheels themselves, and not on an index. facts.yaml lists them under
        `prebuilt`, each for one torch minor, CUDA major, C++ ABI and Python.
        """
        build = (
            str(self.name.torch),
            self.wheel_cuda.major,
            self.variant.cxx11_abi,
            str(self.base.python),
        )
        for release in self.facts.prebuilt:
            if release.package != name or release.version != version:
                continue
            for wheel in release.wheels:
                if (wheel.torch, wheel.cuda, wheel.cxx11_abi, wheel.python) == build:
                    return _prebuilt(release, wheel)
        return None


def _prebuilt(release: PrebuiltRelease, wheel: PrebuiltWheel) -> Prebuilt:
    """Return an official wheel as the image has it: where it lies, its hash and its device code."""
    return Prebuilt(
        name=release.package,
        version=release.version,
        filename=wheel.file,
        url=release.address + quote(wheel.file),
        sha256=wheel.sha256,
        archs=tuple(sorted(Arch.parse(text) for text in release.archs)),
        ptx=tuple(sorted(Arch.parse(text) for text in release.ptx)),
    )
