"""matrix.yaml and facts.yaml into typed, validated objects. All errors at once, each with file and line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from images.config import paths, selectors, yamlfile
from images.config.facts import Capability, Facts, MinorText, RangeText, RequirementText, Row, Sentence, VersionText
from images.config.names import ImageName, Minor
from images.config.yamlfile import YamlFile
from images.errors import Problem, UserError
from validate.claims import Tier

ROOT = paths.RESOURCES
MATRIX = ROOT / "matrix.yaml"
"""The checkout and its matrix, for tests."""
FACTS = paths.DATA / "facts.yaml"


def _image_name(value: object) -> str:
    text = str(value)
    try:
        return str(ImageName.parse(text))
    except UserError as error:
        raise ValueError(f"{text!r} {error.problems[0].cause}: {error.problems[0].then}") from None


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


def _selector(value: object) -> str:
    try:
        return str(selectors.parse(str(value)))
    except UserError as error:
        raise ValueError(f"{error.problems[0].where} {error.problems[0].cause}: {error.problems[0].then}") from None


def _left_out(value: object) -> str:
    if value == "torch":
        raise ValueError("an image without torch is none")
    return str(value)


def _word(pattern: str, what: str, but: tuple[str, ...] = ()) -> BeforeValidator:
    """Text that goes into a Dockerfile, a file name or a tag as it stands."""

    def check(value: object) -> str:
        if not re.fullmatch(pattern, str(value), re.ASCII) or value in but:
            raise ValueError(f"{str(value)!r} is no {what}")
        return str(value)

    return BeforeValidator(check)


ImageNameText = Annotated[str, BeforeValidator(_image_name)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
ExactRequirement = Annotated[str, BeforeValidator(_exact)]
PinText = Annotated[str, BeforeValidator(_pin)]
SelectorText = Annotated[str, BeforeValidator(_selector)]
LeftOut = Annotated[str, BeforeValidator(_left_out)]
Reference = Annotated[str, _word(r"[a-z0-9][\w./:@-]*", "image reference (debian:bookworm-slim)")]
Variable = Annotated[str, _word(r"[A-Za-z_]\w*", "name of an environment variable")]
Alias = Annotated[str, _word(r"[a-z0-9][a-z0-9._-]*", "name for an image (lower case, digits, . _ -)")]
LayerName = Annotated[
    # Each layer is a stage of the Dockerfile and a file of the lock, and these are taken.
    str,
    _word(
        r"[a-z][a-z0-9-]*", "name for a layer", but=("system", "tools", "toolkit", "cuda", "profile", "build", "image")
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
    def _one(self) -> CompilerRow:
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
    floor: Capability = "7.5"
    """The oldest GPU architecture that its code is written for."""
    ptx: bool = False
    """Keep PTX of the newest architecture, too."""
    environment: dict[str, str] = {}
    """What its setup.py is told: `{numbers}` becomes 80;90, `{capabilities}` 8.0;9.0."""
    job_memory: Annotated[int, Field(ge=1)] = 2
    """GiB that its largest file takes to compile."""


class ImageRow(Row):
    """One image we build, and where it differs from its name's defaults."""

    name: ImageNameText
    archs: list[Capability] = []
    """Promise these architectures alone; empty: all that torch and bitsandbytes have code for."""
    without: list[LeftOut] = []
    """Distributions of the stack that this image leaves out."""


class Profile(Row):
    """An environment that people train in, as a thin layer over the shared ones."""

    page: Sentence
    """The reference page it answers to."""
    extends: str = ""
    """Another profile, whose pins and settings it takes over."""
    stacks: dict[MinorText, dict[str, PinText]] = Field(min_length=1)
    """Per torch minor, its own pins. One that differs from the stack's is an override, and the plan says so."""
    offers: dict[str, PinText] = {}
    """What the page names as optional: in the image where the facts allow it, left out with the reason elsewhere."""
    waived: dict[MinorText, dict[str, Sentence]] = {}
    """Per torch minor, distributions that its packages require and the image goes without, each with the reason."""
    unproven: dict[MinorText, dict[str, Sentence]] = {}
    """Per torch minor, claims (`C10`, `C10 nf4-logits`) that its own pins put out of reach, each with the reason."""
    environment: dict[Variable, str] = {}
    entrypoint: str = ""
    """A script of templates/entrypoints that each container starts with."""


class Slice(Row):
    """What images for one GPU architecture go without."""

    nvidia: bool = False
    """Slice NVIDIA's own libraries, too. Their licence restricts modification (docs/arch-images.md)."""


class Exclusion(Row):
    """Images that the facts would allow and we do not build."""

    select: SelectorText
    reason: Sentence


class Nightly(Row):
    """What a night builds twice: as locked, and with the newest versions."""

    track: list[SelectorText] = []
    """Which images."""
    held: list[str] = ["torch"]
    """Layers that the newest versions leave as they are locked."""
    ranges: dict[str, RangeText] = {}
    """Distribution -> what a canary may take; without a row: any newer version that the facts don't speak against."""
    stacks: dict[MinorText, dict[str, RangeText]] = {}
    """The same for one torch minor, over `ranges`."""


class ExpectedFailure(Row):
    """A known breakage: a claim that is expected to fail, until upstream has mended it."""

    select: SelectorText
    claim: Annotated[str, _word(r"[A-Z]\d+( \S.*)?", "claim (S4, or with its subject: S4 symbols)")]
    issue: Annotated[str, _word(r"[\w.-]+/[\w.-]+#\d+|https://\S+", "issue (OWNER/REPOSITORY#NUMBER, or its URL)")]
    when: RequirementText = ""
    """Only where the image has these versions: `torchao>=0.14,<0.16`."""


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
    toolkits: dict[MinorText, ToolkitRow]
    sources: dict[str, SourceRow] = {}
    """Packages that are compiled here into wheels."""
    common: dict[str, PinText] = {}
    """Pins of every stack that does not say otherwise."""
    stacks: dict[MinorText, dict[str, PinText]] = Field(min_length=1)
    """Per torch minor: distribution -> version."""
    profiles: dict[str, Profile] = {}
    images: list[ImageRow] = Field(min_length=1)
    exclude: list[Exclusion] = []
    slice: Slice = Slice()
    aliases: dict[Alias, ImageNameText] = {}
    gate: list[Tier] = Field(default=[Tier.STATIC, Tier.CPU, Tier.GPU], min_length=1)
    """Tiers whose required claims must all be PASS before an image is published, or an alias points at it."""
    nightly: Nightly = Nightly()
    xfail: list[ExpectedFailure] = []

    def row(self, name: ImageName) -> ImageRow | None:
        return next((row for row in self.images if row.name == str(name)), None)

    def layer_of(self, distribution: str) -> str | None:
        return next((layer for layer, names in self.layers.items() if distribution in names), None)


Known = TypeVar("Known")


@dataclass(frozen=True)
class Sources:
    """Both files, loaded: what every plan is made from."""

    matrix: Matrix
    facts: Facts
    matrix_file: YamlFile
    problems: tuple[Problem, ...] = ()
    """What was wrong in the matrix and left out of it so that the rest could be checked in the same run."""
    pruned: frozenset[yamlfile.Path] = frozenset()
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, what: str, work: Callable[[], Known]) -> Known:
        """What `work` finds out of these files, which never change: asked for again, it is not worked out again."""
        if what not in self._known:
            self._known[what] = work()
        return cast("Known", self._known[what])

    @cached_property
    def revision(self) -> str:
        """Short hash of what images are made from, in matrix and facts; comments and order of keys do not change it."""
        matrix = self.matrix.model_dump(exclude={"nightly", "xfail"})
        content = json.dumps([matrix, self.facts.model_dump()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def load(matrix: Path | None = None, facts: Path = FACTS) -> Sources:
    """Read both files; without `matrix`, the workspace's. Raises UserError with every problem of both at once.

    A matrix with problems whose rest is sound is returned with them, so that `plan.check` can add what
    it finds (an alias to a refused image) before all are told together.
    """
    matrix = matrix or paths.workspace().matrix
    facts_file = yamlfile.parse(paths.shown(facts), _read(facts))
    known, facts_problems, _ = _validate(Facts, facts_file)
    matrix_file = yamlfile.parse(paths.shown(matrix), _read(matrix))
    wanted, problems, pruned = _validate(Matrix, matrix_file)
    if known is None or wanted is None or facts_problems:
        raise UserError([*facts_problems, *problems])
    consistency = tuple(_consistency(wanted, matrix_file, pruned))
    return _plannable(Sources(wanted, known, matrix_file, (*problems, *consistency), pruned))


def _plannable(sources: Sources) -> Sources:
    """The same without what no plan can be made of, all of it told in `problems` already."""
    wanted = sources.matrix
    torchless = {torch for torch, pins in wanted.stacks.items() if "torch" not in pins}
    base = wanted.defaults.base if wanted.defaults.base in wanted.bases else next(iter(wanted.bases))
    sound = {
        "stacks": {torch: pins for torch, pins in wanted.stacks.items() if torch not in torchless},
        "defaults": Defaults(base=base),
    }
    pruned = sources.pruned | {("stacks", torch) for torch in torchless}
    return replace(sources, matrix=wanted.model_copy(update=sound), pruned=pruned)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        then = f"`git checkout {path.name}`, or name another one with --matrix"
        raise UserError(Problem(where=paths.shown(path), cause="is missing", then=then)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            Problem(where=paths.shown(path), cause=f"can't be read: {error}", then="mend the file")
        ) from None


Model = TypeVar("Model", bound=Row)


def _validate(model: type[Model], file: YamlFile) -> tuple[Model | None, list[Problem], frozenset[yamlfile.Path]]:
    """The model, what was wrong, and the paths left out of it to get that far (None: nothing sound remained)."""
    problems, pruned, data = list(file.duplicates), set[yamlfile.Path](), file.data
    while True:
        try:
            return model.model_validate(data), problems, frozenset(pruned)
        except ValidationError as error:
            errors = error.errors()
        # Only the first round's errors are the person's: later ones come from what was left out.
        if not pruned:
            problems += [
                Problem(where=file.where(_path(item["loc"])), cause=_sentence(dict(item)), then=_then(file))
                for item in errors
            ]
        paths = {_node(data, _path(item["loc"])) for item in errors}
        if () in paths:
            return None, problems, frozenset(pruned)
        pruned |= paths
        data = _without(data, paths)


def _then(file: YamlFile) -> str:
    return f"mend {file.name}; docs/matrix.md explains each key"


def _path(loc: tuple[str | int, ...]) -> yamlfile.Path:
    """Pydantic's location, which marks an error in a mapping's key by a part of its own."""
    return tuple(part for part in loc if part != "[key]")


def _node(data: Any, path: yamlfile.Path) -> yamlfile.Path:
    """What to leave out for an error at `path`: the deepest node there is, but an item of a list as a whole."""
    found: yamlfile.Path = ()
    for part in path:
        inside = (isinstance(data, dict) and part in data) or (isinstance(data, list) and isinstance(part, int))
        if not inside:
            break
        data, found = data[part], (*found, part)
        if isinstance(part, int):
            break
    return found


def _sentence(error: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        return f"unknown key {place!r}"
    if error["type"] == "missing":
        return f"{place!r} is missing"
    return f"{place}: {str(error['msg']).removeprefix('Value error, ')}"


def _without(data: Any, paths: set[yamlfile.Path]) -> Any:
    if isinstance(data, dict):
        kept = {key: value for key, value in data.items() if (key,) not in paths}
        return {key: _without(value, {path[1:] for path in paths if path[0] == key}) for key, value in kept.items()}
    if isinstance(data, list):
        kept_items = [(index, value) for index, value in enumerate(data) if (index,) not in paths]
        return [_without(value, {path[1:] for path in paths if path[0] == index}) for index, value in kept_items]
    return data


def _consistency(matrix: Matrix, file: YamlFile, pruned: frozenset[yamlfile.Path]) -> Iterator[Problem]:
    """What the types can't say: names that stand twice, or point at nothing."""
    then = _then(file)
    yield from _twice(matrix, file)
    if matrix.defaults.base not in matrix.bases and ("bases", matrix.defaults.base) not in pruned:
        known = ", ".join(matrix.bases)
        cause = f"there is no base {matrix.defaults.base!r} (there are {known})"
        yield Problem(where=file.where(("defaults", "base")), cause=cause, then=then)
    layered = {name for names in matrix.layers.values() for name in names}
    pinned: list[yamlfile.Path] = [("common", name) for name in matrix.common]
    pinned += [("stacks", torch, name) for torch, pins in matrix.stacks.items() for name in pins]
    for path in pinned:
        name = str(path[-1])
        if canonicalize_name(name) != name:
            cause = f"write {name!r} as {canonicalize_name(name)!r}"
            yield Problem(where=file.where(path), cause=cause, then=then)
        elif name not in layered:
            cause = f"no layer installs {name!r}"
            yield Problem(where=file.where(path), cause=cause, then="name it under `layers`")
    for torch, pins in matrix.stacks.items():
        if "torch" not in pins and ("stacks", torch, "torch") not in pruned:
            yield Problem(where=file.where(("stacks", torch)), cause="has no torch", then="pin torch in it")
        elif "torch" in pins and str(Minor.parse(pins["torch"])) != torch:
            where, cause = file.where(("stacks", torch, "torch")), f"torch {pins['torch']} is no {torch}"
            yield Problem(where=where, cause=cause, then=then)
    for index, name in enumerate(matrix.optional):
        if name not in layered:
            cause = f"no layer installs {name!r}, so no image can lack it"
            yield Problem(where=file.where(("optional", index)), cause=cause, then="name it under `layers`")
    yield from _left_out_in_vain(matrix, file, pruned)
    yield from _nightly_in_vain(matrix, file)
    for alias in matrix.aliases:
        if alias in {row.name for row in matrix.images}:
            cause = f"the alias {alias!r} is the name of an image"
            yield Problem(where=file.where(("aliases", alias)), cause=cause, then="rename the alias")


def _left_out_in_vain(matrix: Matrix, file: YamlFile, pruned: frozenset[yamlfile.Path]) -> Iterator[Problem]:
    """Names under `without` that the image's stack does not pin: a typo would leave in what was to be left out."""
    raw = {str(item.get("name")): index for index, item in enumerate(file.data["images"]) if isinstance(item, dict)}
    for row in matrix.images:
        torch = str(ImageName.parse(row.name).torch)
        pins = {**matrix.common, **matrix.stacks.get(torch, {})}
        for name in row.without:
            if torch in matrix.stacks and name not in pins and ("stacks", torch, name) not in pruned:
                cause = f"{row.name} leaves out {name!r}, which its stack does not pin"
                yield Problem(where=file.where(("images", raw.get(row.name, 0))), cause=cause, then=_then(file))


def _nightly_in_vain(matrix: Matrix, file: YamlFile) -> Iterator[Problem]:
    """Ranges for what nothing pins, and layers that there are not: a typo would let a canary take anything."""
    profiles = matrix.profiles.values()
    pinned = {name for names in matrix.layers.values() for name in names}
    pinned |= {name for profile in profiles for pins in (*profile.stacks.values(), profile.offers) for name in pins}
    ranges: list[yamlfile.Path] = [("nightly", "ranges", name) for name in matrix.nightly.ranges]
    ranges += [("nightly", "stacks", torch, name) for torch, rows in matrix.nightly.stacks.items() for name in rows]
    for path in ranges:
        if path[-1] not in pinned:
            yield Problem(where=file.where(path), cause=f"nothing pins {str(path[-1])!r}", then=_then(file))
    for torch in matrix.nightly.stacks:
        if torch not in matrix.stacks:
            cause = f"there is no stack for torch {torch}"
            yield Problem(where=file.where(("nightly", "stacks", torch)), cause=cause, then=_then(file))
    for index, layer in enumerate(matrix.nightly.held):
        if layer not in matrix.layers:
            cause = f"there is no layer {layer!r} (there are {', '.join(matrix.layers)})"
            yield Problem(where=file.where(("nightly", "held", index)), cause=cause, then=_then(file))


def _twice(matrix: Matrix, file: YamlFile) -> Iterator[Problem]:
    first: dict[str, str] = {}
    raw = file.data.get("images", [])
    for index, item in enumerate(raw if isinstance(raw, list) else []):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            continue
        where = file.where(("images", index))
        if name in first:
            yield Problem(
                where=where, cause=f"{name} stands twice (first at {first[name]})", then="keep one of the two"
            )
        first.setdefault(name, where)
    owners: dict[str, str] = {}
    for layer, names in matrix.layers.items():
        for position, name in enumerate(names):
            if name in owners:
                cause = f"{name!r} is in two layers, {owners[name]} and {layer}"
                yield Problem(where=file.where(("layers", layer, position)), cause=cause, then="keep one of the two")
            owners.setdefault(name, layer)
