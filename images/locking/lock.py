"""An image's lock: its whole Python closure, a file a layer, each package at one version with its wheels' hashes.

`locks/NAME/` holds `LAYER.txt` files that install with `--require-hashes --no-deps`, and `lock.json`: what they were
made from. A lock whose recorded inputs are not the image's is stale. The files of a layer name no image, so images
that share a torch share `torch.txt` byte for byte.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from images.config.matrix import ROOT
from images.config.names import Minor
from images.errors import Problem, UserError
from images.host.hashing import sha256
from images.locking import uv
from images.locking.uv import Package, Runner, Target
from images.planning.image import Image

FOLDER = ROOT / "locks"
RECORD = "lock.json"
TOOLS = ("uv==0.13.8",)
"""What installs the rest inside a build and is left out of the image."""
BUILD_TOOLS = ("setuptools==80.9.0", "setuptools-scm==8.3.1", "wheel==0.45.1")
"""What builds packages that are locked as source, and is left out of the image."""

_HEADER = "# Made by `nox -s lock` from matrix.yaml; not edited by hand. Wheels for Linux x86-64, each by hash.\n"
_ENTRY = re.compile(r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[0-9][0-9a-z.!+]*)")
_HASH = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})")
_NEWEST_GLIBC = Minor(2, 40)
"""The newest manylinux platform that uv knows by name."""


@dataclass(frozen=True, kw_only=True)
class LockInputs:
    """Everything a lock is made from."""

    python: str
    platform: str
    index: str | None
    layers: Mapping[str, tuple[str, ...]]
    """Layer -> its pins, bottom first: each is resolved with all that its packages need."""
    alone: Mapping[str, tuple[str, ...]]
    """File -> exact wheels that are installed by themselves (toolkit parts, the installer)."""
    from_source: tuple[str, ...] = ()
    """Distributions locked as source."""
    excluded: tuple[str, ...] = ()
    """Distributions left out though something requires them."""
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Layer -> what its packages from outside any index require."""

    def asked(self, layer: str) -> tuple[str, ...]:
        """All that a layer is resolved from."""
        return (*self.layers[layer], *self.needs.get(layer, ()))

    @property
    def target(self) -> Target:
        return Target(
            python=self.python,
            platform=self.platform,
            index=self.index,
            from_source=self.from_source,
            excluded=self.excluded,
        )

    @property
    def place(self) -> tuple[str, str, str | None]:
        """What a layer must have in common to be shared, besides its pins."""
        return self.python, self.platform, self.index

    def shares(self, other: LockInputs) -> tuple[str, ...]:
        """The layers, bottom first, that both images could have in common."""
        shared = []
        if self.place == other.place:
            for mine, theirs in zip(self.layers, other.layers, strict=False):
                if mine != theirs or self.asked(mine) != other.asked(theirs):
                    break
                shared.append(mine)
        return tuple(shared)


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A lock as it lies in the repository, or as it will."""

    inputs: LockInputs
    files: Mapping[str, bytes]
    """`torch.txt` and the like -> content; without `lock.json`."""
    layers: Mapping[str, tuple[Package, ...]]
    """Layer (`toolkit` and `tools` too) -> its packages."""
    edited: tuple[str, ...] = ()
    """Files that are not what the lock's record says they were: edited by hand, or merged."""

    def versions(self, layers: Iterable[str]) -> dict[str, str]:
        return {package.name: package.version for layer in layers for package in self.layers[layer]}


class Status(StrEnum):
    """What the plan says of an image's lock."""

    PRESENT = "present"
    MISSING = "missing"
    STALE = "stale"


@dataclass(frozen=True)
class State:
    """A lock's status and, when stale, what moved, in words."""

    status: Status
    differences: tuple[str, ...] = ()


def inputs(image: Image) -> LockInputs:
    """What the image's lock is made from. Optional and compiled pins are no part of it: no index need have them."""
    return LockInputs(
        python=str(image.python),
        platform=f"x86_64-manylinux_{str(min(image.base.glibc, _NEWEST_GLIBC)).replace('.', '_')}",
        index=image.index,
        layers={
            layer: tuple(pin.requirement for pin in image.pins if pin.layer == layer and pin.locked)
            for layer in image.layers
        },
        needs={
            layer: needs
            for layer in image.layers
            if (needs := tuple(sorted({need for pin in image.pins if pin.layer == layer for need in pin.needs})))
        },
        alone={
            "toolkit": tuple(pin.requirement for pin in image.toolkit),
            "tools": TOOLS,
            **({"build": BUILD_TOOLS} if image.from_source else {}),
        },
        from_source=image.from_source,
        excluded=image.waived,
    )


def state(image: Image, folder: Path = FOLDER) -> State:
    """Whether the image has a lock and the lock is the image's. A damaged lock counts as stale."""
    place = folder / image.lock_name
    if not (place / RECORD).is_file():
        return State(Status.MISSING)
    try:
        found = _load(place)
    except UserError as error:
        return State(Status.STALE, tuple(f"{problem.where}: {problem.cause}" for problem in error.problems))
    edited = tuple(f"{name} is not what {RECORD} records" for name in found.edited)
    differences = tuple(_differences(found.inputs, inputs(image))) or tuple(_lacking(found)) or edited
    return State(Status.STALE if differences else Status.PRESENT, differences)


def states(images: Iterable[Image], folder: Path = FOLDER) -> dict[str, Status]:
    """Name -> its lock's status. A lock that images share (a parent and its arch images) is read once."""
    known: dict[str, tuple[object, Status]] = {}
    found: dict[str, Status] = {}
    for image in images:
        name, own = image.lock_name, _made_from(image)
        if name not in known or known[name][0] != own:
            known[name] = (own, state(image, folder).status)
        found[str(image.name)] = known[name][1]
    return found


def _made_from(image: Image) -> object:
    """All that `inputs` reads of an image, quicker to compare than what it makes of it."""
    packages = (image.pins, image.toolkit, image.layers, image.from_source, image.waived)
    return (*packages, image.python, image.base, image.index)


def read(image: Image, folder: Path = FOLDER) -> Lock:
    """The image's lock. Raises UserError: there is none, or it is older than the pins."""
    found = state(image, folder)
    command = f"`nox -s lock -- {image.lock_name}`"
    where = f"{_shown(folder)}/{image.lock_name}"
    if found.status is Status.MISSING:
        then = f"{command} makes it" + (
            f"; it must reach {image.index}, which alone has this torch" if image.index else ""
        )
        raise UserError(Problem(where=where, cause=f"{image.name} has no lock", then=then))
    if found.status is Status.STALE:
        cause = f"the lock is older than the pins: {'; '.join(found.differences)}"
        raise UserError(Problem(where=where, cause=cause, then=f"{command} makes a new one"))
    return _load(folder / image.lock_name)


def update(
    images: Sequence[Image],
    others: Sequence[Image] = (),
    *,
    folder: Path = FOLDER,
    upgrade: bool = False,
    run: Runner = uv.run,
    tell: Callable[[str], None] = lambda _text: None,
) -> dict[str, bytes]:
    """Path below `folder` -> content, of the locks of `images`.

    Versions of the present lock are kept where they still fit, so that moving one pin does not move the world;
    `upgrade` takes the newest that fit instead, and then renews the locks of those `others` (the rest of the plan)
    that share a layer, since they stay equal in it. `tell` gets a line an image. Raises UserError with the problems
    of all images at once.
    """
    wanted = {image.lock_name: image for image in images}
    if upgrade:
        wanted.update((image.lock_name, image) for image in others if _renewed_with(image, images, folder))
    made: dict[str, Lock] = {}
    problems: list[Problem] = []
    # A profile's packages are choosier than a stack's: what they settle on, images that share a layer can follow.
    for name, image in sorted(wanted.items(), key=lambda item: item[1].profile is None):
        known = [*made.values(), *([] if upgrade else _present(others, folder))]
        own = {} if upgrade else _versions_at(folder / name)
        tell(f"resolving {name}")
        try:
            made[name] = resolve(image, run, preferred=_preferred(inputs(image), own, known))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    return {f"{name}/{path}": content for name, lock in made.items() for path, content in written(lock).items()}


def resolve(image: Image, run: Runner = uv.run, *, preferred: Mapping[str, str] | None = None) -> Lock:
    """Resolve the whole image at once, then split it into layers.

    Raises UserError: no versions fit, a package is source only or a local file, the torch is not the image's CUDA
    build, an index that can't be reached or gives no hashes.
    """
    where, wanted = str(image.name), inputs(image)
    pins = [pin for layer in wanted.layers for pin in wanted.asked(layer)]
    chosen = uv.versions(pins, wanted.target, preferred=preferred or {}, run=run, where=where)
    layers = _split(wanted, chosen, run, where)
    everything = [package for layer in layers.values() for package in layer]
    if problems := [*_foreign_builds(image, everything), *_not_this_cuda(image, everything)]:
        raise UserError(problems)
    for name, exact in wanted.alone.items():
        layers[name] = uv.packages(exact, wanted.target, chosen={}, run=run, where=where, dependencies=False)
    files = {f"{layer}.txt": print_requirements(found) for layer, found in layers.items()}
    return Lock(inputs=wanted, files=files, layers=layers)


def written(lock: Lock) -> dict[str, bytes]:
    """File name -> content of a lock's folder."""
    record = {
        "python": lock.inputs.python,
        "platform": lock.inputs.platform,
        "index": lock.inputs.index,
        "layers": lock.inputs.layers,
        "alone": lock.inputs.alone,
        **({"from_source": lock.inputs.from_source} if lock.inputs.from_source else {}),
        **({"excluded": lock.inputs.excluded} if lock.inputs.excluded else {}),
        **({"needs": lock.inputs.needs} if lock.inputs.needs else {}),
        "sha256": {name: sha256(content) for name, content in sorted(lock.files.items())},
    }
    return {**lock.files, RECORD: f"{json.dumps(record, indent=2)}\n".encode()}


def differing(files: Mapping[str, bytes], folder: Path = FOLDER) -> tuple[str, ...]:
    """Paths that `write` would change, sorted: what `--check` shows."""
    changed = {path for path, content in files.items() if not _holds(folder / path, content)}
    return tuple(sorted(changed | {str(path.relative_to(folder)) for path in _leftovers(files, folder)}))


def write(files: Mapping[str, bytes], folder: Path = FOLDER) -> None:
    """Put locks where they belong, each file whole or not at all, and remove layers they no longer have."""
    for path in _leftovers(files, folder):
        path.unlink()
    for name in sorted(files, key=lambda path: path.endswith(RECORD)):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        partial.write_bytes(files[name])
        partial.replace(target)


def print_requirements(packages: Iterable[Package]) -> bytes:
    """A requirements file, in the order given."""
    blocks = (
        " \\\n    ".join([f"{package.name}=={package.version}", *(f"--hash=sha256:{text}" for text in package.hashes)])
        for package in packages
    )
    return (_HEADER + "".join(f"{block}\n" for block in blocks)).encode()


def parse_requirements(content: bytes, where: str) -> tuple[Package, ...]:
    """The inverse of `print_requirements`.

    Raises UserError for anything else than `name==version` with hashes: an index address, a URL, a file, an option.
    """
    packages, wrong = _entries(content)
    problems = [
        Problem(
            where=_shown(Path(where)),
            cause=f"{text[:80]!r} is not `name==version` with sha256 hashes",
            then="`nox -s lock -- NAME` makes the file anew",
        )
        for text in wrong
    ]
    if problems:
        raise UserError(problems)
    return packages


@lru_cache(maxsize=4096)
def _entries(content: bytes) -> tuple[tuple[Package, ...], tuple[str, ...]]:
    """The packages, and the entries that are none. Kept: layers that images share have the same bytes in every lock."""
    text = "\n".join(line for line in content.decode(errors="replace").splitlines() if not line.startswith("#"))
    entries = [entry.split() for entry in text.replace("\\\n", " ").splitlines() if entry.strip()]
    wrong = tuple(" ".join(entry) for entry in entries if not _is_entry(entry))
    return tuple(_entry(entry) for entry in entries), wrong


def _is_entry(words: Sequence[str]) -> bool:
    hashes = words[1:]
    return bool(_ENTRY.fullmatch(words[0])) and bool(hashes) and all(map(_HASH.fullmatch, hashes))


def _entry(words: Sequence[str]) -> Package:
    name, _, version = words[0].partition("==")
    return Package(name=name, version=version, hashes=tuple(word.rpartition(":")[2] for word in words[1:]))


def _split(wanted: LockInputs, chosen: Mapping[str, str], run: Runner, where: str) -> dict[str, tuple[Package, ...]]:
    """Layer -> packages: a pin is in its own layer, all else in the lowest layer that needs it.

    What a layer needs is asked of uv, for that layer and those below at the versions chosen for the whole: markers
    and extras are then right, and nothing above can be seen in the answer but the versions.
    """
    home = {_name(pin): layer for layer, pins in wanted.layers.items() for pin in pins}
    needed: dict[str, Package] = {}
    for layer, pins in zip(wanted.layers, accumulate(map(wanted.asked, wanted.layers)), strict=True):
        for package in uv.packages(pins, wanted.target, chosen=chosen, run=run, where=where) if pins else ():
            needed.setdefault(package.name, package)
            home.setdefault(package.name, layer)
    ordered = sorted(needed.values(), key=lambda package: package.name)
    return {layer: tuple(package for package in ordered if home[package.name] == layer) for layer in wanted.layers}


@cache
def _name(requirement: str) -> str:
    return str(canonicalize_name(requirement.partition("==")[0]))


def _foreign_builds(image: Image, packages: Iterable[Package]) -> Iterator[Problem]:
    """Local versions (+cpu, +cu130) that this image did not ask for: PyPI has none, PyTorch's index one a variant."""
    allowed = {None, f"cu{image.wheel_cuda.digits}"} if image.index else {None}
    for package in packages:
        local = Version(package.version).local
        if local not in allowed:
            kind = "a CPU build" if local == "cpu" else f"a build of {local}"
            cause = f"{package.name} {package.version} is {kind}; the image wants CUDA {image.wheel_cuda}"
            then = "resolve with the plain index: no find-links, no extra index, no mirror that adds builds of its own"
            yield Problem(where=str(image.name), cause=cause, then=then)


def _not_this_cuda(image: Image, packages: Iterable[Package]) -> Iterator[Problem]:
    """A torch whose closure lacks the CUDA runtime of the image's wheel: a CPU torch, or one of another CUDA."""
    distribution = "nvidia-cuda-runtime" + (f"-cu{image.wheel_cuda.major}" if image.wheel_cuda < Minor(13, 0) else "")
    by_name = {package.name: package.version for package in packages}
    runtimes = [f"{name} {version}" for name, version in by_name.items() if name.startswith("nvidia-cuda-runtime")]
    version = by_name.get(distribution)
    if version is None or Minor.parse(version) != image.wheel_cuda:
        has = f"brings {', '.join(runtimes)}" if runtimes else "brings no CUDA runtime: it is a CPU build"
        cause = f"torch {by_name.get('torch', '')} {has}; the image wants CUDA {image.wheel_cuda}"
        then = "does the index have the variant that images/data/facts.yaml says?"
        yield Problem(where=str(image.name), cause=cause, then=then)


def _preferred(wanted: LockInputs, own: Mapping[str, str], known: Iterable[Lock]) -> dict[str, str]:
    """Versions to keep: the image's own, and above them those of layers that another lock has in common with it."""
    preferred = dict(own)
    for lock in known:
        shared = lock.versions(lock.inputs.shares(wanted))
        if shared:
            return preferred | shared
    return preferred


def _renewed_with(image: Image, images: Sequence[Image], folder: Path) -> bool:
    mine = inputs(image)
    locked = (folder / image.lock_name / RECORD).is_file()
    return locked and any(mine.shares(inputs(other)) for other in images)


def _present(images: Iterable[Image], folder: Path) -> list[Lock]:
    return [_load(folder / image.lock_name) for image in images if state(image, folder).status is Status.PRESENT]


def _versions_at(place: Path) -> dict[str, str]:
    """Versions of whatever lock lies there; none where it is missing or damaged."""
    try:
        lock = _load(place)
    except UserError:
        return {}
    return lock.versions(lock.inputs.layers)


def _load(place: Path) -> Lock:
    """The lock in a folder, whatever it was made from. Raises UserError: a file is missing or damaged."""
    record, digests = _record(place)
    names = {layer: f"{layer}.txt" for layer in (*record.layers, *record.alone)}
    files = {name: _bytes(place, name) for name in names.values()}
    layers = {layer: parse_requirements(files[name], f"{place}/{name}") for layer, name in names.items()}
    edited = tuple(name for name, content in files.items() if digests.get(name) != sha256(content))
    return Lock(inputs=record, files=files, layers=layers, edited=edited)


def _record(place: Path) -> tuple[LockInputs, dict[str, str]]:
    """What the lock was made from, and file -> sha256."""
    try:
        data = json.loads(_bytes(place, RECORD))
        made_from = LockInputs(
            python=str(data["python"]),
            platform=str(data["platform"]),
            index=data["index"],
            layers={str(layer): tuple(map(str, pins)) for layer, pins in data["layers"].items()},
            alone={str(name): tuple(map(str, pins)) for name, pins in data["alone"].items()},
            from_source=tuple(map(str, data.get("from_source", ()))),
            excluded=tuple(map(str, data.get("excluded", ()))),
            needs={str(layer): tuple(map(str, needs)) for layer, needs in data.get("needs", {}).items()},
        )
        return made_from, {str(name): str(digest) for name, digest in data["sha256"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        then = f"`nox -s lock -- {place.name}` makes it anew"
        raise UserError(Problem(where=_shown(place / RECORD), cause="is damaged", then=then)) from None


def _bytes(place: Path, name: str) -> bytes:
    """A file of a lock. Plain strings and no buffer: a large matrix has tens of thousands of these."""
    try:
        with open(f"{place}/{name}", "rb", buffering=0) as stream:  # noqa: PTH123
            return stream.readall()
    except OSError:
        then = f"`nox -s lock -- {place.name}` makes it"
        raise UserError(Problem(where=_shown(place / name), cause="is missing", then=then)) from None


def _differences(old: LockInputs, new: LockInputs) -> Iterator[str]:
    """What moved between a lock's inputs and an image's, in words."""
    if old == new and [*old.layers] == [*new.layers]:
        return
    for what, left, right in (
        ("Python", old.python, new.python),
        ("platform", old.platform, new.platform),
        ("index", old.index or "default", new.index or "default"),
        ("packages from source", _joined(old.from_source), _joined(new.from_source)),
        ("packages left out", _joined(old.excluded), _joined(new.excluded)),
        ("requirements of compiled packages", _needs(old), _needs(new)),
    ):
        if left != right:
            yield f"{what} {left} -> {right}"
    before, after = _pins(old), _pins(new)
    for place, name in sorted({*before, *after}):
        was, now = before.get((place, name)), after.get((place, name))
        if was is None:
            yield f"{name} {now} added to {place}"
        elif now is None:
            yield f"{name} {was} taken out of {place}"
        elif was != now:
            yield f"{name} {was} -> {now}"
    if not {*before} ^ {*after} and [*old.layers] != [*new.layers]:
        yield f"layers {' '.join(old.layers)} -> {' '.join(new.layers)}"


def _needs(found: LockInputs) -> str:
    return _joined([need for needs in found.needs.values() for need in needs])


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _pins(found: LockInputs) -> dict[tuple[str, str], str]:
    return {
        (place, _name(pin)): pin.partition("==")[2]
        for place, pins in (*found.layers.items(), *found.alone.items())
        for pin in pins
    }


def _lacking(lock: Lock) -> Iterator[str]:
    """Recorded pins that the files do not hold: somebody edited them, or a merge went wrong."""
    for place, pins in (*lock.inputs.layers.items(), *lock.inputs.alone.items()):
        yield from _lacking_in(f"{place}.txt", lock.files[f"{place}.txt"], pins)


@lru_cache(maxsize=4096)
def _lacking_in(name: str, content: bytes, pins: Sequence[str]) -> tuple[str, ...]:
    """Kept, as `_entries` is."""
    lacking = []
    for pinned in sorted(pins, key=_name):
        version = pinned.partition("==")[2]
        held = [package.version for package in _entries(content)[0] if package.name == _name(pinned)]
        if not any(_fulfils(text, version) for text in held):
            has = f"holds {_name(pinned)} {held[0]}, not {version}" if held else f"lacks {_name(pinned)} {version}"
            lacking.append(f"{name} {has}")
    return tuple(lacking)


def _fulfils(held: str, pinned: str) -> bool:
    """As `==` does: a pin without a local version takes any local version."""
    if held == pinned:
        return True
    try:
        found, wanted = Version(held), Version(pinned)
    except InvalidVersion:
        return False
    return found == wanted if wanted.local else Version(found.public) == wanted


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _leftovers(files: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Requirement files in the folders of `files` that are none of them."""
    places = {folder / Path(name).parent for name in files}
    return [path for place in places for path in place.glob("*.txt") if str(path.relative_to(folder)) not in files]


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
