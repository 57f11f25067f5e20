"""Image names: `cu126-torch25[-py312][-sm90][-devel][-PROFILE][-arm64]`, read and written."""

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
"""Words that no profile's name may contain, because the platform stands behind it."""


class Minor(NamedTuple):
    """A major.minor version, ordered as numbers: 12.10 > 12.9."""

    major: int
    minor: int

    @classmethod
    @cache
    def parse(cls, text: str) -> Self:
        """Return the first two parts of a version such as `12.6`, `12.6.3` or `2.7.1+cu128`.

        Raises ValueError for a text of another form.
        """
        match = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9a-z.]+)?", text.split("+")[0])
        if not match:
            raise ValueError(f"{text!r} is not a version of the form X.Y")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def digits(self) -> str:
        """The form in image names: `126` for 12.6, `210` for 2.10."""
        return f"{self.major}{self.minor}"


class Arch(NamedTuple):
    """A GPU architecture, by its compute capability: Arch(9, 0) is sm_90."""

    major: int
    minor: int

    @classmethod
    @cache
    def parse(cls, text: str) -> Self:
        """Return a GPU's compute capability from `sm_90`, `sm90` or `9.0`.

        Raises ValueError for a text of another form.
        """
        with_sm = re.fullmatch(r"sm_?([0-9]{1,2})([0-9])", text)
        with_dot = re.fullmatch(r"([0-9]{1,2})\.([0-9])", text)
        match = with_sm or with_dot
        if not match:
            raise ValueError(f"{text!r} is no GPU architecture: write it as sm_90, sm90 or 9.0")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}"

    @property
    def capability(self) -> str:
        """The dotted form of TORCH_CUDA_ARCH_LIST: `9.0`."""
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True, kw_only=True)
class ImageName:
    """A parsed image name. Parts that the name leaves out are None or False."""

    cuda: Minor
    torch: Minor
    python: Minor | None = None
    arch: Arch | None = None
    devel: bool = False
    profile: str | None = None
    platform: Platform = Platform.AMD64

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the parts of an image's name, such as `cu126-torch25-py312-sm90-devel-PROFILE`.

        Parts that the name leaves out are None or False; without a platform, it means linux/amd64.
        Raises UserError, with the grammar of names, if the text is no name.
        """
        # The profile's name is the last part, and may have hyphens. So the platform, which may
        # follow it, is cut off before the rest is matched.
        without_platform = text.removesuffix(f"-{Platform.ARM64.suffix}")
        platform = Platform.AMD64 if without_platform == text else Platform.ARM64

        match = _NAME.fullmatch(without_platform)
        is_name = match is not None
        if match and match["profile"]:
            # A profile with the word `arm64` or `amd64` would read as a platform.
            is_name = _ARCHITECTURES.isdisjoint(match["profile"].split("-"))
        if match is None or not is_name:
            then = f"write names as {_GRAMMAR}; `{command('plan')}` lists them"
            raise wrong(text, "is no name of an image", then)

        # CUDA's major has two digits, and those of torch and Python have one: cu126 is 12.6,
        # torch210 is 2.10, py312 is 3.12.
        cuda, torch, python, arch = match.group("cuda", "torch", "python", "arch")
        return cls(
            cuda=Minor(int(cuda[:2]), int(cuda[2:])),
            torch=Minor(int(torch[0]), int(torch[1:])),
            python=Minor(int(python[0]), int(python[1:])) if python else None,
            arch=Arch.parse(f"sm{arch}") if arch else None,
            devel=bool(match["devel"]),
            profile=match["profile"],
            platform=platform,
        )

    def __str__(self) -> str:
        """Return the name as people write it; parts that are not set are left out."""
        parts = [f"cu{self.cuda.digits}", f"torch{self.torch.digits}"]
        if self.python:
            parts.append(f"py{self.python.digits}")
        if self.arch:
            parts.append(f"sm{self.arch.major}{self.arch.minor}")
        if self.devel:
            parts.append("devel")
        if self.profile:
            parts.append(self.profile)
        if self.platform.suffix:
            parts.append(self.platform.suffix)
        return "-".join(parts)
