"""The grammar of image names: `cu126-torch25[-py312][-sm90][-devel][-PROFILE][-arm64]`. The name is the API."""

import re
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Self

from images.config.platforms import Platform
from images.errors import command, wrong

_GRAMMAR = "cu126-torch25[-py312][-sm90][-devel][-PROFILE][-arm64]"
_NAME = re.compile(
    r"cu(?P<cuda>[1-9]\d(?:0|[1-9]\d?))"
    r"-torch(?P<torch>[1-9](?:0|[1-9]\d{0,2}))"
    r"(?:-py(?P<python>3[1-9]\d{0,2}))?"
    r"(?:-sm(?P<arch>[1-9]\d{1,2}))?"
    r"(?P<devel>-devel)?"
    r"(?:-(?P<profile>(?!devel\b|(?:sm|py)\d+(?:-|$))[a-z][a-z0-9]*(?:-[a-z0-9]+)*))?",
    re.ASCII,
)
_ARCHITECTURES = frozenset(platform.architecture for platform in Platform)
"""No part of a profile's name, which the platform's stands behind."""


class Minor(NamedTuple):
    """A major.minor version, ordered as numbers: 12.10 > 12.9."""

    major: int
    minor: int

    @classmethod
    @cache
    def parse(cls, text: str) -> Self:
        """Read `12.6` (a longer version such as `12.6.3` keeps its first two parts). Raises ValueError."""
        match = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9a-z.]+)?", text.split("+")[0])
        if not match:
            raise ValueError(f"{text!r} is not a version of the form X.Y")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def digits(self) -> str:
        """The form names use: `126` for 12.6, `210` for 2.10."""
        return f"{self.major}{self.minor}"


class Arch(NamedTuple):
    """A GPU architecture by compute capability, as validate.compute_capability has pairs: Arch(9, 0) is sm_90."""

    major: int
    minor: int

    @classmethod
    @cache
    def parse(cls, text: str) -> Self:
        """Read `sm_90`, `sm90` or `9.0`. Raises ValueError."""
        match = re.fullmatch(r"sm_?([0-9]{1,2})([0-9])|([0-9]{1,2})\.([0-9])", text)
        if not match:
            raise ValueError(f"{text!r} is not a GPU architecture (sm_90, or 9.0)")
        return cls(int(match[1] or match[3]), int(match[2] or match[4]))

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}"

    @property
    def capability(self) -> str:
        """The dotted form of TORCH_CUDA_ARCH_LIST: `9.0`."""
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True, kw_only=True)
class ImageName:
    """A parsed image name. Parts that equal the defaults are absent (None, False)."""

    cuda: Minor
    torch: Minor
    python: Minor | None = None
    arch: Arch | None = None
    devel: bool = False
    profile: str | None = None
    platform: Platform = Platform.AMD64

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a name. Raises UserError with the grammar when it is not one."""
        # Taken off first: a profile's name may have hyphens, and would swallow it.
        rest = text.removesuffix(f"-{Platform.ARM64.suffix}")
        match = _NAME.fullmatch(rest)
        if not match or not _ARCHITECTURES.isdisjoint((match["profile"] or "").split("-")):
            raise wrong(
                text,
                "is not an image name",
                f"names read {_GRAMMAR}; `{command('plan')}` lists them",
            )
        cuda, torch, python, arch, devel, profile = match.group(
            "cuda", "torch", "python", "arch", "devel", "profile"
        )
        return cls(
            cuda=Minor(int(cuda[:2]), int(cuda[2:])),
            torch=Minor(int(torch[0]), int(torch[1:])),
            python=Minor(int(python[0]), int(python[1:])) if python else None,
            arch=Arch.parse(f"sm{arch}") if arch else None,
            devel=bool(devel),
            profile=profile,
            platform=Platform.AMD64 if rest == text else Platform.ARM64,
        )

    def __str__(self) -> str:
        python = f"py{self.python.digits}" if self.python else ""
        arch = f"sm{self.arch.major}{self.arch.minor}" if self.arch else ""
        more = (python, arch, "devel" if self.devel else "", self.profile, self.platform.suffix)
        return "-".join([f"cu{self.cuda.digits}", f"torch{self.torch.digits}", *filter(None, more)])
