"""The keys of matrix.yaml, typed. docs/schema/matrix.schema.json is made from these."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Annotated, Self

from packaging.version import InvalidVersion, Version
from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from images.config import selectors
from images.config.facts import Capability, MinorText, RangeText, Row, Sentence, VersionText, word
from images.config.names import ImageName
from images.config.platforms import Platform
from images.errors import UserError
from validate.claims import Tier

GATE = (Tier.STATIC, Tier.CPU, Tier.GPU)
"""The gate of a matrix that names none, and of no matrix at all."""


def _parsed(parse: Callable[[str], object], value: object) -> str:
    """Text that `parse` reads, as it prints it."""
    try:
        return str(parse(str(value)))
    except UserError as error:
        problem = error.problems[0]
        raise ValueError(f"{problem.where} {problem.cause}: {problem.then}") from None


def _exact(value: object) -> str:
    """`name==version` and no more: a marker or an extra would be dropped by what installs it."""
    name, _, version = str(value).partition("==")
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", name) or not version:
        raise ValueError(f"{str(value)!r} must name one version with ==")
    return f"{name}=={_pin(version)}"


def _pin(value: object) -> str:
    """A version without a local part: whose build it is (`+cpu`, `+cu126`) is the plan's to say."""
    try:
        local = Version(str(value)).local
    except InvalidVersion:
        raise ValueError(f"{str(value)!r} is no version (PEP 440)") from None
    if local:
        raise ValueError(f"{str(value)!r} names one build of a version: write it without +{local}")
    return str(value)


ImageNameText = Annotated[str, BeforeValidator(partial(_parsed, ImageName.parse))]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
ExactRequirement = Annotated[str, BeforeValidator(_exact)]
PinText = Annotated[str, BeforeValidator(_pin)]
SelectorText = Annotated[str, BeforeValidator(partial(_parsed, selectors.parse))]
LeftOut = Annotated[
    str, word(r".*", "package that can be left out: an image without torch is none", but=("torch",))
]
Reference = Annotated[str, word(r"[a-z0-9][\w./:@-]*", "image reference (debian:bookworm-slim)")]
Variable = Annotated[str, word(r"[A-Za-z_]\w*", "name of an environment variable")]
Alias = Annotated[
    str, word(r"[a-z0-9][a-z0-9._-]*", "name for an image (lower case, digits, . _ -)")
]
LayerName = Annotated[
    # Each layer is a stage of the Dockerfile and a file of the lock, and these are taken.
    str,
    word(
        r"[a-z][a-z0-9-]*",
        "name for a layer",
        but=("system", "tools", "toolkit", "cuda", "profile", "build", "image"),
    ),
]


class BaseRow(Row):
    """A Linux userland to stand on."""

    reference: Reference
    suite: str = ""
    """The Debian suite it can be bootstrapped from where no registry answers; empty: registry only."""
    python: MinorText
    glibc: MinorText
    gcc: int


class CompilerRow(Row):
    """Who has an nvcc where wheels have none: the packages of a Debian suite, or NVIDIA's devel image."""

    debian: str = ""
    image: str = ""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.debian) == bool(self.image):
            raise ValueError("names one of `debian` and `image`")
        return self


class ToolkitRow(Row):
    """The wheels that make up /usr/local/cuda-X.Y: in every image, and in a -devel image on top."""

    parts: list[ExactRequirement] = Field(min_length=1)
    devel: list[ExactRequirement] = []
    compiler: CompilerRow | None = None


class SourceRow(Row):
    """How a package that is published as source only is compiled."""

    distribution: str = ""
    """What it is called on an index; empty: as the row."""
    releases: dict[VersionText, Digest] = Field(min_length=1)
    """Version -> sha256 of its source archive."""
    torch: RangeText = ""
    """The torch releases that it compiles on."""
    nvcc: bool = True
    """It compiles code for GPUs."""
    minimum_arch: Capability = "7.5"
    """The oldest GPU architecture that its code is written for."""
    ptx: bool = False
    """Keep PTX of the newest architecture, too."""
    environment: dict[str, str] = {}
    """What its setup.py is told: `{numbers}` becomes 80;90, `{capabilities}` 8.0;9.0."""
    job_memory: Annotated[int, Field(ge=1)] = 2
    """GiB that its largest file takes to compile."""
    cpu: Annotated[str, Field(pattern=r"^(x86-64-v[234])?$")] = ""
    """The x86-64 level that code for the host is compiled for, where setup.py asks for the builder's own processor."""
    patch: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9.-]*\.patch)?$")] = ""
    """A file of templates/wheel/patches that is applied to its source."""


class ImageRow(Row):
    """One image we build, and where it differs from its name's defaults."""

    name: ImageNameText
    archs: list[Capability] = []
    """Support these architectures alone; empty: all that torch and bitsandbytes have code for."""
    without: list[LeftOut] = []
    """Distributions of the stack that this image leaves out."""
    platforms: list[Platform] = Field(default=[Platform.AMD64], min_length=1)
    """What it is built for. The image of linux/arm64 has `-arm64` behind its name."""

    @model_validator(mode="after")
    def _plain_name(self) -> Self:
        if self.image_name.platform is not Platform.AMD64:
            raise ValueError("the platform is no part of a row's name: list it under `platforms`")
        return self

    @property
    def image_name(self) -> ImageName:
        return ImageName.parse(self.name)

    def names(self) -> tuple[ImageName, ...]:
        """The images of this row, one a platform."""
        return tuple(
            replace(self.image_name, platform=platform)
            for platform in dict.fromkeys(self.platforms)
        )


class Profile(Row):
    """An environment that people train in, as a thin layer over the shared ones."""

    page: Sentence
    """The reference page it answers to."""
    extends: str = ""
    """Another profile, whose pins and settings it takes over."""
    stacks: dict[MinorText, dict[str, PinText]] = Field(min_length=1)
    """Per torch minor, its own pins. One that differs from the stack's is an override, and the plan says so."""
    optional: dict[str, PinText | dict[MinorText, PinText]] = {}
    """What the page names as optional, at one version or one for each torch: in the image where the facts allow it,
    left out with the reason elsewhere."""
    waived: dict[MinorText, dict[str, Sentence]] = {}
    """Per torch minor, distributions that its packages require and the image lacks, or has in the version of the
    profile's pin instead; each with the reason."""
    extensions: list[str] = []
    """Rows of `sources` whose wheels have the compiled extensions of packages that are else installed as pure Python:
    where one was compiled for the image, it takes the other's place."""
    environment: dict[Variable, str] = {}
    entrypoint: str = ""
    """A script of templates/entrypoints that each container starts with."""


class Prune(Row):
    """What images for one GPU architecture lack."""

    nvidia: bool = False
    """Prune NVIDIA's own libraries, too. Their licence restricts modification (docs/arch-images.md)."""


class Exclusion(Row):
    """Images that the facts would allow and we do not build."""

    select: SelectorText
    reason: Sentence


class Kept(Row):
    """A stack that nothing moves before a day."""

    until: date
    reason: Sentence

    def __str__(self) -> str:
        return f"kept as it is until {self.until}: {self.reason}"


class Nightly(Row):
    """What a nightly run builds twice: as locked, and with the newest versions."""

    track: list[SelectorText] = []
    """Which images."""
    held: list[str] = ["torch"]
    """Layers that the newest versions leave as they are locked."""
    ranges: dict[str, RangeText] = {}
    """Distribution -> what a canary may take; without a row: any newer version that the facts don't speak against."""
    stacks: dict[MinorText, dict[str, RangeText]] = {}
    """The same for one torch minor, over `ranges`."""
    kept: dict[MinorText, Kept] = {}
    """Torch minors whose pins stay as they are: until that day a nightly run builds them as locked alone."""

    def why_kept(self, torch: str, today: date) -> str:
        """Until when nothing moves the pins of a torch minor, and why; empty: they may move."""
        found = self.kept.get(torch)
        return str(found) if found and today < found.until else ""


class Defaults(Row):
    """What an image name leaves out."""

    base: str


class Matrix(Row):
    """The whole of matrix.yaml."""

    defaults: Defaults
    bases: dict[str, BaseRow] = Field(min_length=1)
    layers: dict[LayerName, list[str]] = Field(min_length=2)
    """Python layers, bottom first, and the distributions each installs. The toolkit comes below the last."""
    optional: list[str] = []
    """Distributions an image may lack, with a warning, where no wheel can be had."""
    pure_python: list[str] = []
    """Pure Python that an index has as source alone: built while it is installed, from sources that the lock hashes."""
    environment: dict[Variable, str] = {}
    prefix: Annotated[str, StringConstraints(pattern=r"^([a-z0-9]+([._/-][a-z0-9]+)*[-/:])?$")] = ""
    """What the names of images begin with in an engine (`mine-`, or a repository: `me/images:`), so that those of two
    matrices don't take each other's."""
    toolkits: dict[MinorText, ToolkitRow]
    sources: dict[str, SourceRow] = {}
    """Packages that are compiled here into wheels."""
    common: dict[str, PinText] = {}
    """Pins of every stack that does not say otherwise."""
    stacks: dict[MinorText, dict[str, PinText]] = Field(min_length=1)
    """Per torch minor: distribution -> version."""
    overrides: dict[MinorText, dict[ExactRequirement, Sentence]] = {}
    """Per torch minor: exact requirement that is taken whatever packages require, where any requires it -> why."""
    waived: dict[str, dict[str, Sentence]] = {}
    """Pinned distribution -> what it requires, by itself or through others, and images with it go without: why."""
    profiles: dict[str, Profile] = {}
    images: list[ImageRow] = Field(min_length=1)
    exclude: list[Exclusion] = []
    prune: Prune = Prune()
    aliases: dict[Alias, ImageNameText] = {}
    gate: list[Tier] = Field(default=[*GATE], min_length=1)
    """Tiers whose required claims must all be PASS before an image is published, or an alias points at it."""
    nightly: Nightly = Nightly()

    def row(self, name: ImageName) -> ImageRow | None:
        """The row of an image that the matrix has, on whatever platform."""
        return next((row for row in self.images if name in row.names()), None)

    def line(self, profile: str) -> tuple[Profile, ...]:
        """The profile that this one extends, then itself."""
        own = self.profiles[profile]
        return (self.profiles[own.extends], own) if own.extends in self.profiles else (own,)
