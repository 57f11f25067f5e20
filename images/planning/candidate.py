"""A combination before it is judged: what the matrix asks for, beside what the facts know of it. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from urllib.parse import quote

from images.config.facts import CudaFacts, DeviceCode, Facts, PackageFacts, TorchFacts, TorchVariant
from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.config.schema import Matrix, ToolkitRow
from images.planning.image import Base, Prebuilt

PROFILE_LAYER = "profile"
"""Where packages go that no layer of the matrix installs: above all that images share, below what moves most."""


@dataclass(frozen=True, kw_only=True)
class ResolvedProfile:
    """A profile for one torch, with all that it inherits; of an image without one, nothing."""

    pins: Mapping[str, str]
    optional: Mapping[str, str]
    """Optional package -> version: taken where it fits."""
    waived: Mapping[str, str]
    """Distribution that is required and left out -> why."""
    extensions: tuple[str, ...]
    """Rows of `sources` that make its packages with their compiled extensions."""
    environment: Mapping[str, str]
    entrypoint: str


def resolve_profile(matrix: Matrix, name: str | None, minor: Minor) -> ResolvedProfile:
    """A profile that is pinned for this torch, with what it inherits: its own rows count over those it extends."""
    torch, line = str(minor), matrix.line(name) if name else ()
    optional = {key: text for one in line for key, text in one.optional.items()}
    for_torch = {
        key: text if isinstance(text, str) else text.get(torch, "")
        for key, text in optional.items()
    }
    return ResolvedProfile(
        pins={pin: version for one in line for pin, version in one.stacks.get(torch, {}).items()},
        optional={key: version for key, version in for_torch.items() if version},
        waived={key: why for one in line for key, why in one.waived.get(torch, {}).items()},
        extensions=tuple(dict.fromkeys(row for one in line for row in one.extensions)),
        environment={key: value for one in line for key, value in one.environment.items()},
        entrypoint=next((one.entrypoint for one in reversed(line) if one.entrypoint), ""),
    )


@dataclass(frozen=True)
class Finding:
    """What a rule says of a combination: why it is refused, or what to warn about."""

    text: str
    refuses: bool = False


warn, refuse = Finding, partial(Finding, refuses=True)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A combination before it is judged. Its torch has a wheel for `wheel_cuda`, and the matrix a stack for it."""

    name: ImageName
    matrix: Matrix
    facts: Facts
    base: Base
    torch: str
    torch_facts: TorchFacts
    wheel_cuda: Minor
    variant: TorchVariant
    toolkit: ToolkitRow | None
    toolkit_facts: CudaFacts | None
    requested_archs: tuple[Arch, ...]
    """What the name or the matrix asks for; empty: whatever all parts cover."""
    profile: ResolvedProfile
    stack: Mapping[str, str]
    pins: Mapping[str, str]
    optional: frozenset[str]
    """Pins that the image may lack."""
    declined: Mapping[str, tuple[str, ...]]
    """Optional packages that this image can't have -> why not."""
    overrides: Mapping[str, str]
    """Exact requirement that is taken here against what packages require -> why."""

    @property
    def cudnn(self) -> str:
        """The version that it will run with; empty: not known."""
        taken = [
            row.partition("==")[2] for row in self.overrides if row.startswith("nvidia-cudnn-")
        ]
        return taken[0] if taken else self.variant.cudnn

    @cached_property
    def known(self) -> Mapping[str, PackageFacts]:
        """Pinned distribution -> what the facts know of it at that version."""
        packages = self.facts.packages
        return {
            name: row
            for name, version in self.pins.items()
            if (row := packages.get(name, {}).get(version))
        }

    @cached_property
    def binaries(self) -> Mapping[str, DeviceCode]:
        """The parts whose device code decides where the image runs at all: torch, what takes the place of a library of
        its own, and bitsandbytes' library."""
        parts: dict[str, DeviceCode] = {
            f"torch {self.torch} cu{self.wheel_cuda.digits}": self.variant
        }
        row = self.facts.bitsandbytes.get(self.pins.get("bitsandbytes", ""))
        if row and (library := row.library_for(self.wheel_cuda)):
            parts[f"bitsandbytes {self.pins['bitsandbytes']} cu{library.digits}"] = row.libraries[
                str(library)
            ]
        return parts | {
            taken: code for taken in self.overrides if (code := self.facts.device_code.get(taken))
        }

    @cached_property
    def compilers(self) -> Mapping[str, Collection[str]]:
        """What compiles while programs run there, and for which GPUs."""
        return self.facts.compile_at_run_time(self.pins.get("triton", ""), self.wheel_cuda)

    @cached_property
    def supported_archs(self) -> tuple[Arch, ...]:
        """The requested ones, else torch's that the toolkit compiles for and every part has machine code for."""
        if self.requested_archs:
            return self.requested_archs
        boards = self.facts.arm64.boards if self.name.platform is Platform.ARM64 else {}
        # Code of their family serves them: torch makes none for sm_103 and sm_121 alone.
        wanted = {*self.variant.archs, *(text for text, board in boards.items() if not board.unfit)}
        compiles = self.toolkit_facts.nvcc_archs if self.toolkit_facts else self.variant.archs
        archs = sorted(map(Arch.parse, wanted.intersection(compiles, *self.compilers.values())))
        parts = self.binaries.values()
        return tuple(arch for arch in archs if all(code.covers(arch) == "cubin" for code in parts))

    def official_wheel(self, name: str, version: str) -> Prebuilt | None:
        """The official wheel (`prebuilt` in facts.yaml) for this torch, CUDA major, C++ ABI and Python, if any."""
        wanted = (
            str(self.name.torch),
            self.wheel_cuda.major,
            self.variant.cxx11_abi,
            str(self.base.python),
        )
        for release in self.facts.prebuilt:
            for wheel in (
                release.wheels if (release.package, release.version) == (name, version) else ()
            ):
                if (wheel.torch, wheel.cuda, wheel.cxx11_abi, wheel.python) == wanted:
                    return Prebuilt(
                        name=name,
                        version=version,
                        filename=wheel.file,
                        url=release.address + quote(wheel.file),
                        sha256=wheel.sha256,
                        archs=tuple(sorted(map(Arch.parse, release.archs))),
                        ptx=tuple(sorted(map(Arch.parse, release.ptx))),
                    )
        return None
