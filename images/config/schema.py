"""The types of matrix.yaml. docs/schema/matrix.schema.json is made from them."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Annotated, Self
from urllib.parse import urlsplit

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from images.config import selectors
from images.config.facts import Capability, MinorText, RangeText, Row, Sentence, VersionText, word
from images.config.names import ImageName, Minor
from images.config.platforms import Platform
from images.errors import UserError
from validate.claims import Tier

GATE = (Tier.STATIC, Tier.CPU, Tier.GPU)
"""The gate if the matrix names none, or if there is no matrix."""
OLDEST_GLIBC = Minor(2, 28)
"""The oldest glibc that images can be locked for: that of torch's own wheels (manylinux_2_28)."""


def _parsed(parse: Callable[[str], object], value: object) -> str:
    """Return a value as `parse` reads and prints it. Raises ValueError for what it can't read."""
    try:
        return str(parse(str(value)))
    except UserError as error:
        problem = error.problems[0]
        raise ValueError(f"{problem.where} {problem.cause}: {problem.then}") from None


def _exact(value: object) -> str:
    """Return `name==version` unchanged. Raises ValueError for anything more or less.

    A marker or an extra would be dropped by what installs the package.
    """
    name, _, version = str(value).partition("==")
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", name) or not version:
        raise ValueError(f"{str(value)!r} names no single version: write it as NAME==VERSION")
    return f"{name}=={_pin(version)}"


def _pin(value: object) -> str:
    """Return a version unchanged. Raises ValueError for none, and for one with a local part.

    The plan decides which build of a version is taken (`+cpu`, `+cu126`).
    """
    try:
        local = Version(str(value)).local
    except InvalidVersion:
        raise ValueError(f"{str(value)!r} is no version (PEP 440)") from None
    if local:
        raise ValueError(f"{str(value)!r} names one build of a version: write it without +{local}")
    return str(value)


def _index_address(value: object) -> str:
    """Return the address of an index without a slash at its end.

    Raises ValueError for another scheme than http and https, for a host or port that is not valid,
    and for a login, a query or a fragment. The message does not repeat the address, which may hold
    a password.
    """
    try:
        address = urlsplit(str(value))
        # Reading the port raises ValueError if it is no number up to 65535. A password before the
        # host can have this effect: urlsplit ends the host at its first `/`.
        _port = address.port
    except ValueError:
        raise ValueError(
            "has no valid host or port: write https://HOST/PATH or https://HOST:PORT/PATH, without "
            "a login"
        ) from None
    if address.scheme not in ("https", "http") or not address.hostname:
        raise ValueError("is no address of an index: it begins with https://HOST/")
    # Also after the host: the password in `https://me:80/secret@host/simple` has a slash.
    if "@" in str(value) or address.query or address.fragment:
        raise ValueError(
            "holds a login, a query or a fragment: write only the address; the login comes from "
            "netrc, a keyring, or UV_INDEX_NAME_USERNAME and UV_INDEX_NAME_PASSWORD"
        )
    return str(value).rstrip("/")


def _glibc(value: str) -> str:
    """Return a version of glibc (`2.36`) unchanged. Raises ValueError if no wheels fit it."""
    version = Minor.parse(value)
    if version.major != OLDEST_GLIBC.major or version < OLDEST_GLIBC:
        raise ValueError(
            f"{value} is no glibc that packages can be locked for: it must be {OLDEST_GLIBC} or "
            f"a newer {OLDEST_GLIBC.major}.x, which the base has (`ldd --version` shows it there)"
        )
    return value


ImageNameText = Annotated[str, BeforeValidator(partial(_parsed, ImageName.parse))]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
GlibcText = Annotated[MinorText, AfterValidator(_glibc)]
ExactRequirement = Annotated[str, BeforeValidator(_exact)]
PinText = Annotated[str, BeforeValidator(_pin)]
SelectorText = Annotated[str, BeforeValidator(partial(_parsed, selectors.parse))]
LeftOut = Annotated[
    str,
    word(
        r".*", "package that can be left out: an image without torch is none", reserved=("torch",)
    ),
]
Reference = Annotated[str, word(r"[a-z0-9][\w./:@-]*", "image reference (debian:bookworm-slim)")]
Variable = Annotated[str, word(r"[A-Za-z_]\w*", "name of an environment variable")]
Alias = Annotated[
    str, word(r"[a-z0-9][a-z0-9._-]*", "name for an image (lower case, digits, . _ -)")
]
IndexName = Annotated[
    # The name is also part of uv's variables: `acme-corp` -> UV_INDEX_ACME_CORP_PASSWORD.
    str, word(r"[a-z0-9]+(-[a-z0-9]+)*", "name for an index (lower case, digits, -)")
]
IndexAddress = Annotated[str, BeforeValidator(_index_address)]
LayerName = Annotated[
    # Each layer is a stage of the Dockerfile and a file of the lock. The reserved names are taken.
    str,
    word(
        r"[a-z][a-z0-9-]*",
        "name for a layer",
        reserved=("system", "tools", "toolkit", "cuda", "profile", "build", "image"),
    ),
]


class IndexRow(Row):
    """A private index: one beside the default index, which alone has some packages."""

    url: IndexAddress
    packages: list[str] = Field(min_length=1)
    """The packages that come from it alone: the default index is never asked for them."""


class BaseRow(Row):
    """A base image."""

    reference: Reference
    suite: str = ""
    """The Debian suite from which it can be made without a registry; empty: it can't."""
    python: MinorText
    glibc: GlibcText
    """Its glibc; of a custom base, the oldest that it may have."""
    gcc: int = 0
    """Its gcc; 0: not known, as of a custom base."""
    custom: bool = False
    """Whether it is an image of your own: what is in it is read when an image is built on it."""

    @model_validator(mode="after")
    def _is_known_or_custom(self) -> Self:
        """Raise ValueError for a custom base with a suite, and for another base without a gcc."""
        if self.custom and self.suite:
            raise ValueError("names a Debian `suite`, from which no `custom` base is made")
        if not self.custom and not self.gcc:
            raise ValueError("needs `gcc`, or `custom: true` if it is an image of your own")
        return self


class CompilerRow(Row):
    """Where nvcc comes from if no wheel has it: a Debian suite, or NVIDIA's devel image."""

    debian: str = ""
    image: str = ""

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        """Raise ValueError unless exactly one of the two is given."""
        if bool(self.debian) == bool(self.image):
            raise ValueError("`compiler` must have either `debian` or `image`, and not both")
        return self


class ToolkitRow(Row):
    """The wheels of /usr/local/cuda-X.Y: `parts` in every image, `devel` in -devel images."""

    parts: list[ExactRequirement] = Field(min_length=1)
    devel: list[ExactRequirement] = []
    compiler: CompilerRow | None = None


class SourceRow(Row):
    """How a package that is published as source only is compiled into a wheel."""

    distribution: str = ""
    """Its name on an index; empty: that of the row."""
    releases: dict[VersionText, Digest] = Field(min_length=1)
    """Version -> sha256 of its source archive."""
    torch: RangeText = ""
    """The torch releases that it compiles on."""
    nvcc: bool = True
    """Whether it compiles code for GPUs."""
    minimum_arch: Capability = "7.5"
    """The oldest GPU architecture that its code is written for."""
    ptx: bool = False
    """Whether PTX of the newest architecture is kept, too."""
    environment: dict[str, str] = {}
    """Variables for its setup.py: `{numbers}` becomes 80;90, `{capabilities}` 8.0;9.0."""
    job_memory: Annotated[int, Field(ge=1)] = 2
    """Memory that its largest file takes to compile, in GiB."""
    cpu: Annotated[str, Field(pattern=r"^(x86-64-v[234])?$")] = ""
    """The x86-64 level of its code for the host, if setup.py would take the builder's processor."""
    patch: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9.-]*\.patch)?$")] = ""
    """The patch of templates/wheel/patches that is applied to its source; empty: none."""


class ImageRow(Row):
    """One image, and where it differs from what its name says."""

    name: ImageNameText
    archs: list[Capability] = []
    """The only architectures to support; empty: all that torch and bitsandbytes have code for."""
    without: list[LeftOut] = []
    """Distributions of the stack that this image leaves out."""
    platforms: list[Platform] = Field(default=[Platform.AMD64], min_length=1)
    """The platforms it is built for. The name of the image for linux/arm64 ends with `-arm64`."""

    @model_validator(mode="after")
    def _names_no_platform(self) -> Self:
        """Raise ValueError for a name that ends with a platform."""
        if self.image_name.platform is not Platform.AMD64:
            raise ValueError(
                "the name of a row has no platform: write it without -arm64, and list linux/arm64 "
                "under `platforms` of this row"
            )
        return self

    @property
    def image_name(self) -> ImageName:
        return ImageName.parse(self.name)

    def names(self) -> tuple[ImageName, ...]:
        """Return the names of this row's images: one for each platform, even if it stands twice."""
        platforms = dict.fromkeys(self.platforms)
        return tuple(replace(self.image_name, platform=platform) for platform in platforms)


class Profile(Row):
    """A framework's environment: packages and settings on top of those that images share."""

    page: Sentence
    """The framework's page whose requirements it fulfils."""
    extends: str = ""
    """Another profile whose pins and settings it inherits; empty: none."""
    stacks: dict[MinorText, dict[str, PinText]] = Field(min_length=1)
    """Torch minor -> its own pins. The plan warns of those that replace the stack's."""
    optional: dict[str, PinText | dict[MinorText, PinText]] = {}
    """What the page names as optional -> its version, or one for each torch minor.

    The image has it if the facts allow it; otherwise the plan warns, with the reason."""
    waived: dict[MinorText, dict[str, Sentence]] = {}
    """Torch minor -> distributions that its packages require and the image lacks -> why.

    If the profile pins such a distribution, the image has that version instead."""
    extensions: list[str] = []
    """Rows of `sources` that make packages with their compiled extensions.

    A wheel that was compiled for the image replaces the pure-Python package of the lock."""
    environment: dict[Variable, str] = {}
    entrypoint: str = ""
    """The script of templates/entrypoints with which each container starts; empty: none."""


class Prune(Row):
    """What is taken out of images for one GPU architecture."""

    nvidia: bool = False
    """Whether NVIDIA's libraries are pruned. Their licence restricts it (docs/arch-images.md)."""


class Exclusion(Row):
    """Images that the facts allow and that we do not build."""

    select: SelectorText
    reason: Sentence


class Kept(Row):
    """A stack whose pins nightly runs leave alone until a day."""

    until: date
    reason: Sentence

    def __str__(self) -> str:
        return f"kept as it is until {self.until}: {self.reason}"


class Nightly(Row):
    """What a nightly run builds: images as they are locked, and with the newest versions."""

    track: list[SelectorText] = []
    """The images that are built."""
    held: list[str] = ["torch"]
    """Layers that stay as they are locked when the newest versions are taken."""
    ranges: dict[str, RangeText] = {}
    """Distribution -> the versions that a canary may take; default: all that the facts allow."""
    stacks: dict[MinorText, dict[str, RangeText]] = {}
    """Torch minor -> ranges that replace those of `ranges` for it."""
    kept: dict[MinorText, Kept] = {}
    """Torch minors whose pins stay: until that day, nightly runs build them only as locked."""

    def why_kept(self, torch: str, today: date) -> str:
        """Return until when the pins of a torch minor stay, and why; empty: they may move."""
        row = self.kept.get(torch)
        return str(row) if row and today < row.until else ""


class Defaults(Row):
    """What an image has if its name says nothing else."""

    base: str


class Matrix(Row):
    """The whole of matrix.yaml."""

    defaults: Defaults
    bases: dict[str, BaseRow] = Field(min_length=1)
    layers: dict[LayerName, list[str]] = Field(min_length=2)
    """Python layers, bottom first -> the distributions that each installs.

    The toolkit's layer lies below the last one."""
    optional: list[str] = []
    """Distributions that an image may lack, with a warning, if there is no wheel of them."""
    pure_python: list[str] = []
    """Pure-Python packages without a wheel: built while they are installed, from hashed sources."""
    environment: dict[Variable, str] = {}
    prefix: Annotated[str, StringConstraints(pattern=r"^([a-z0-9]+([._/-][a-z0-9]+)*[-/:])?$")] = ""
    """The beginning of image names in an engine: `mine-`, or a repository (`me/images:`).

    With it, images of two matrices don't take each other's names."""
    indexes: dict[IndexName, IndexRow] = {}
    """Private indexes, and the packages that come from each alone."""
    toolkits: dict[MinorText, ToolkitRow]
    sources: dict[str, SourceRow] = {}
    """Packages that are compiled into wheels."""
    common: dict[str, PinText] = {}
    """Distribution -> version, in every stack that pins no other."""
    stacks: dict[MinorText, dict[str, PinText]] = Field(min_length=1)
    """Torch minor -> distribution -> version."""
    overrides: dict[MinorText, dict[ExactRequirement, Sentence]] = {}
    """Torch minor -> exact requirement that replaces what packages require -> why."""
    waived: dict[str, dict[str, Sentence]] = {}
    """Pinned distribution -> what it requires and images with it lack -> why."""
    profiles: dict[str, Profile] = {}
    images: list[ImageRow] = Field(min_length=1)
    exclude: list[Exclusion] = []
    prune: Prune = Prune()
    aliases: dict[Alias, ImageNameText] = {}
    gate: list[Tier] = Field(default=[*GATE], min_length=1)
    """Tiers of which all required claims must be PASS before an image or alias is published."""
    nightly: Nightly = Nightly()

    def layered_packages(self) -> set[str]:
        """Return the distributions that the layers install."""
        packages: set[str] = set()
        for names in self.layers.values():
            packages.update(names)
        return packages

    def row(self, name: ImageName) -> ImageRow | None:
        """Return the row of an image; None if the matrix lacks it, or lacks it for its platform."""
        for row in self.images:
            if name in row.names():
                return row
        return None

    def with_parent(self, name: str) -> tuple[Profile, ...]:
        """Return the profile of this name, after the one that it extends, if it extends one."""
        profile = self.profiles[name]
        parent = self.profiles.get(profile.extends)
        return (parent, profile) if parent else (profile,)
