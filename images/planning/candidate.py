"""A combination before it is judged: what the matrix asks, beside what the facts know of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property

from images.config.facts import CudaFacts, DeviceCode, Facts, PackageFacts, TorchFacts, TorchVariant, covers
from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.config.schema import SourceRow, ToolkitRow
from images.planning.image import Base
from images.planning.profiles import Resolved


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A combination before it is judged: what the matrix asks, beside what the facts know of it."""

    name: ImageName
    facts: Facts
    base: Base
    gcc: int
    """Major of the base's gcc."""
    torch: str
    torch_facts: TorchFacts
    wheel_cuda: Minor
    variant: TorchVariant
    pins: Mapping[str, str]
    optional: frozenset[str]
    toolkit: ToolkitRow | None
    toolkit_facts: CudaFacts | None
    asked_archs: tuple[Arch, ...] = ()
    """What the name or the matrix asks for; empty: whatever all parts cover."""
    known_toolkits: tuple[str, ...] = ()
    devel_images: tuple[ImageName, ...] = ()
    """The matrix's images with a devel toolkit: what is offered in place of one that can't be had."""
    profile: Resolved | None = None
    stack: Mapping[str, str] = field(default_factory=dict)
    """The pins of the stack alone."""
    declined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the profile names as optional and this image can't have -> why not."""
    sources: Mapping[str, SourceRow] = field(default_factory=dict)
    """What can be compiled here."""

    @cached_property
    def known(self) -> Mapping[str, PackageFacts]:
        """Pinned distribution -> what the facts know of it at that version."""
        packages, pins = self.facts.packages, self.pins
        return {name: row for name in pins if name in packages and (row := packages[name].get(pins[name]))}

    @property
    def binaries(self) -> Mapping[str, DeviceCode]:
        """The parts whose device code decides where the image runs at all: torch, and bitsandbytes' library."""
        parts: dict[str, DeviceCode] = {f"torch {self.torch} cu{self.wheel_cuda.digits}": self.variant}
        if found := self._bitsandbytes:
            library, code = found
            parts[f"bitsandbytes {self.pins['bitsandbytes']} cu{library.digits}"] = code
        return parts

    @property
    def _bitsandbytes(self) -> tuple[Minor, DeviceCode] | None:
        """The library that it loads beside this torch: its CUDA, and its code."""
        row = self.facts.bitsandbytes.get(self.pins.get("bitsandbytes", ""))
        library = row.library_for(self.wheel_cuda) if row else None
        return (library, row.libraries[str(library)]) if row and library else None

    @property
    def unassembled(self) -> tuple[Arch, ...]:
        """GPUs of ARM boards that the pinned triton can't assemble for: torch.compile would fail there."""
        row = self.facts.arm64.triton.get(self.pins.get("triton", ""))
        return tuple(map(Arch.parse, row.lacks)) if row and self.name.platform is Platform.ARM64 else ()

    @cached_property
    def supported_archs(self) -> tuple[Arch, ...]:
        """The asked architectures, else torch's that every other part has machine code for, too."""
        if self.asked_archs:
            return self.asked_archs
        compiles = tuple(self.toolkit_facts.nvcc_archs if self.toolkit_facts else self.variant.archs)
        boards = self.facts.arm64.boards if self.name.platform is Platform.ARM64 else {}
        # Code of their family serves them: torch makes none for sm_103 and sm_121 alone.
        served = [text for text, board in boards.items() if not board.unfit]
        library = self._bitsandbytes
        parts = (self.variant, library[1]) if library else (self.variant,)
        codes = tuple([(tuple(code.archs), tuple(code.ptx)) for code in parts])
        return _covered((*self.variant.archs, *served), compiles, self.unassembled, codes)


@cache
def _covered(
    wanted: tuple[str, ...],
    compiles: tuple[str, ...],
    left_out: tuple[Arch, ...],
    codes: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...],
) -> tuple[Arch, ...]:
    """The wanted architectures that the toolkit compiles for, and that every code (machine code, PTX) has machine code
    for. Many images ask the same."""
    own = sorted({Arch.parse(text) for text in wanted if text in compiles}.difference(left_out))
    return tuple(arch for arch in own if all(covers(archs, ptx, arch) == "cubin" for archs, ptx in codes))
