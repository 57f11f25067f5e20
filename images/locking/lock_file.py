"""An image's lock as it lies in locks/: its whole Python closure, each package at one version with its hashes.

`locks/NAME/` holds `LAYER.txt` files that install with `--require-hashes --no-deps`, and `lock.json`: what they were
made from. A lock whose recorded inputs are not the image's is stale. The files of a layer name no image, so images
that share a torch share `torch.txt` byte for byte.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from images import errors
from images.config import paths
from images.config.platforms import Platform, of_machine
from images.errors import Problem, UserError, command
from images.host.hashing import sha256
from images.locking import contents, diff
from images.locking.contents import Known
from images.locking.inputs import LockInputs, lock_inputs
from images.locking.uv import Package
from images.planning.image import Image

RECORD = "lock.json"
NO_LOCK = "no lock: can't be built here"
STALE_LOCK = "its lock is older than the pins: can't be built here"
_CHUNK = 1 << 16
_HEADER = "# Made by `nox -s lock` from matrix.yaml; not edited by hand. Wheels for Linux {}, each by hash.\n"
_ENTRY = re.compile(r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[0-9][0-9a-z.!+]*)")
_HASH = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})")


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
    contents: Known = field(default_factory=dict)
    """What its files bring, as far as it was measured."""

    def packages(self) -> Iterator[Package]:
        """Those of the Python layers."""
        for layer in self.inputs.layers:
            yield from self.layers[layer]

    def bytecode(self, digest: str) -> tuple[str, ...]:
        """What is known of the bytecode of a file's sources."""
        known = self.contents.get(digest)
        return known.bytecode if known else ()

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


_SOUND = State(Status.PRESENT)


def located(folder: Path | None) -> Path:
    """The folder of locks: the workspace's, if none is given."""
    return paths.workspace().locks if folder is None else folder


def state(image: Image, folder: Path | None = None) -> State:
    """Whether the image has a lock and the lock is the image's. A damaged lock counts as stale."""
    return _state(f"{located(folder)}/{image.lock_name}", lock_inputs(image))


def is_present(image: Image, folder: Path) -> bool:
    """Whether the image can be built by its lock."""
    return state(image, folder).status is Status.PRESENT


def _state(place: str, wanted: LockInputs) -> State:
    try:
        found = _opened(place)
    except UserError as error:
        if not Path(place, RECORD).is_file():
            return State(Status.MISSING)
        return State(Status.STALE, tuple(f"{problem.where}: {problem.cause}" for problem in error.problems))
    edited = tuple(f"{name} is not what {RECORD} records" for name in found.edited)
    differences = tuple(diff.differences(found.inputs, wanted)) or _lacking(found) or edited
    return State(Status.STALE, differences) if differences else _SOUND


def _lacking(found: _Opened) -> tuple[str, ...]:
    """Recorded pins that the files do not hold. Nearly all stand there word for word."""
    pinned = (*found.inputs.layers.items(), *found.inputs.alone.items())
    if all(found.entries[layer].requirements.issuperset(pins) for layer, pins in pinned):
        return ()
    return tuple(diff.lacking(found.inputs, {layer: entries.versions for layer, entries in found.entries.items()}))


def states(images: Iterable[Image], folder: Path | None = None) -> dict[str, Status]:
    """Name -> its lock's status. A lock that images share (a parent and its arch images) is read once."""
    sharing: dict[str, list[Image]] = {}
    for image in images:
        sharing.setdefault(image.lock_name, []).append(image)
    folder = located(folder)
    found: dict[str, Status] = {}
    for name, users in sharing.items():
        found.update(_statuses(f"{folder}/{name}", users))
    return found


def _statuses(place: str, images: Iterable[Image]) -> Iterator[tuple[str, Status]]:
    """Of images that share one lock: it is read once for those that want the same of it."""
    read: tuple[LockInputs, Status] | None = None
    for image in images:
        wanted = lock_inputs(image)
        if read is None or read[0] != wanted:
            read = (wanted, _state(place, wanted).status)
        yield str(image.name), read[1]


def blocked(image: Image, status: Status) -> str:
    """Why an image can't be built here, with the next command; empty: its lock is there."""
    if status is Status.PRESENT:
        return ""
    again = f"`{command('lock', image.lock_name)}`"
    if status is Status.STALE:
        return f"{STALE_LOCK}; {again} makes it anew"
    return f"{NO_LOCK}; {again} makes it" + (f" where {urlsplit(image.index).hostname} answers" if image.index else "")


def read(image: Image, folder: Path | None = None) -> Lock:
    """The image's lock. Raises UserError: there is none, or it is older than the pins."""
    found = state(image, folder)
    again = f"`{command('lock', image.lock_name)}`"
    folder = located(folder)
    where = f"{paths.shown(folder)}/{image.lock_name}"
    if found.status is Status.MISSING:
        then = f"{again} makes it" + (
            f"; it must reach {image.index}, which alone has this torch" if image.index else ""
        )
        raise UserError(Problem(where=where, cause=f"{image.name} has no lock", then=then))
    if found.status is Status.STALE:
        cause = f"the lock is older than the pins, or damaged: {'; '.join(found.differences)}"
        committed = f"; `git checkout {where}` brings back the committed one" if errors.IS_CHECKOUT else ""
        then = f"{again} makes a new one{committed}"
        raise UserError(Problem(where=where, cause=cause, then=then))
    lock = load(folder / image.lock_name)
    packages = [package for layer in lock.layers.values() for package in layer]
    # By hash, so locks elsewhere (a nightly run's) may be told by what the workspace knows.
    known = [contents.read(packages, place) for place in dict.fromkeys((located(None), folder))]
    return replace(lock, contents={digest: row for rows in known for digest, row in rows.items()})


def load(place: Path) -> Lock:
    """The lock in a folder, stale or not. Raises UserError: a file is missing or damaged."""
    found = _opened(str(place))
    layers = {layer: entries.packages for layer, entries in found.entries.items()}
    return Lock(inputs=found.inputs, files=found.files, layers=layers, edited=found.edited)


@dataclass(frozen=True)
class _Opened:
    """What a lock's folder holds: every file read, hashed and parsed. A plan asks this of each image."""

    inputs: LockInputs
    files: Mapping[str, bytes]
    entries: Mapping[str, _Entries]
    """By layer."""
    edited: tuple[str, ...]


def _opened(place: str) -> _Opened:
    """Raises UserError as `load` does."""
    inputs, digests = _record(place)
    names = {layer: f"{layer}.txt" for layer in (*inputs.layers, *inputs.alone)}
    files = {name: _bytes(place, name) for name in names.values()}
    entries = {layer: _entries(files[name]) for layer, name in names.items()}
    for layer, found in entries.items():
        if found.wrong:
            raise _unsound(found, f"{place}/{names[layer]}")
    edited = tuple(name for layer, name in names.items() if digests.get(name) != entries[layer].sha256)
    return _Opened(inputs, files, entries, edited)


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
        **({"builders": lock.inputs.builders} if lock.inputs.builders else {}),
        **({"needs": lock.inputs.needs} if lock.inputs.needs else {}),
        **({"prebuilt": lock.inputs.prebuilt} if lock.inputs.prebuilt else {}),
        "sha256": {name: sha256(content) for name, content in sorted(lock.files.items())},
    }
    return {**lock.files, RECORD: f"{json.dumps(record, indent=2)}\n".encode()}


def differing(files: Mapping[str, bytes], folder: Path | None = None) -> tuple[str, ...]:
    """Paths that `write` would change, sorted: what `--check` shows."""
    folder = located(folder)
    changed = {path for path, content in files.items() if not _holds(folder / path, content)}
    return tuple(sorted(changed | {str(path.relative_to(folder)) for path in _leftovers(files, folder)}))


def write(files: Mapping[str, bytes], folder: Path | None = None) -> None:
    """Put locks where they belong, each file whole or not at all, and remove layers they no longer have."""
    folder = located(folder)
    for path in _leftovers(files, folder):
        path.unlink()
    put(files, folder)


def put(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files below the folder of locks, each whole or not at all; a lock's record last."""
    for name in sorted(files, key=lambda path: path.endswith(RECORD)):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        partial.write_bytes(files[name])
        partial.replace(target)


def print_requirements(packages: Iterable[Package], platform: str = "x86_64") -> bytes:
    """A requirements file, in the order given. `platform` is uv's name of it, which begins with the machine's."""
    blocks = (
        " \\\n    ".join([f"{package.name}=={package.version}", *(f"--hash=sha256:{text}" for text in package.hashes)])
        for package in packages
    )
    found = of_machine(platform.partition("-")[0]) or Platform.AMD64
    return (_HEADER.format(found.spoken) + "".join(f"{block}\n" for block in blocks)).encode()


def parse_requirements(content: bytes, where: str) -> tuple[Package, ...]:
    """The inverse of `print_requirements`.

    Raises UserError for anything else than `name==version` with hashes: an index address, a URL, a file, an option.
    """
    found = _entries(content)
    if found.wrong:
        raise _unsound(found, where)
    return found.packages


def _unsound(found: _Entries, where: str) -> UserError:
    problems = [
        Problem(
            where=paths.shown(Path(where)),
            cause=f"{text[:80]!r} is not `name==version` with sha256 hashes",
            then=f"`{command('lock', 'NAME')}` makes the file anew",
        )
        for text in found.wrong
    ]
    return UserError(problems)


@dataclass(frozen=True)
class _Entries:
    """A requirements file: its hash, its packages, their versions by name, and the entries that are none."""

    sha256: str
    packages: tuple[Package, ...]
    versions: Mapping[str, str]
    requirements: frozenset[str]
    """The versions again, as pins have them: `name==version`."""
    wrong: tuple[str, ...]


@lru_cache(maxsize=4096)
def _entries(content: bytes) -> _Entries:
    """Kept: layers that images share have the same bytes in every lock."""
    text = "\n".join(line for line in content.decode(errors="replace").splitlines() if not line.startswith("#"))
    entries = [entry.split() for entry in text.replace("\\\n", " ").splitlines() if entry.strip()]
    wrong = tuple(" ".join(entry) for entry in entries if not _is_entry(entry))
    packages = tuple(_entry(entry) for entry in entries if _is_entry(entry))
    versions = {package.name: package.version for package in packages}
    requirements = frozenset(f"{name}=={version}" for name, version in versions.items())
    return _Entries(sha256(content), packages, versions, requirements, wrong)


def _is_entry(words: Sequence[str]) -> bool:
    hashes = words[1:]
    return bool(_ENTRY.fullmatch(words[0])) and bool(hashes) and all(map(_HASH.fullmatch, hashes))


def _entry(words: Sequence[str]) -> Package:
    name, _, version = words[0].partition("==")
    return Package(name=name, version=version, hashes=tuple(word.rpartition(":")[2] for word in words[1:]))


def _record(place: str) -> tuple[LockInputs, dict[str, str]]:
    """What the lock was made from, and file -> sha256."""
    try:
        data = json.loads(_bytes(place, RECORD))
        made_from = LockInputs(
            python=str(data["python"]),
            platform=str(data["platform"]),
            index=data["index"],
            layers={layer: tuple(map(str, pins)) for layer, pins in data["layers"].items()},
            alone={name: tuple(map(str, pins)) for name, pins in data["alone"].items()},
            from_source=tuple(map(str, data.get("from_source", ()))),
            excluded=tuple(map(str, data.get("excluded", ()))),
            builders=tuple(map(str, data.get("builders", ()))),
            needs={layer: tuple(map(str, needs)) for layer, needs in data.get("needs", {}).items()},
            prebuilt={file: str(digest) for file, digest in data.get("prebuilt", {}).items()},
        )
        return made_from, dict(data["sha256"].items())
    except (ValueError, KeyError, TypeError, AttributeError):
        where, then = Path(place, RECORD), f"`{command('lock', Path(place).name)}` makes it anew"
        raise UserError(Problem(where=paths.shown(where), cause="is damaged", then=then)) from None


def _bytes(place: str, name: str) -> bytes:
    """There are tens of thousands: `open` asks the system four things that nobody needs to know of each, and pathlib
    takes longer to join a path than the system to read the file."""
    try:
        descriptor = os.open(f"{place}/{name}", os.O_RDONLY)
        try:
            content = os.read(descriptor, _CHUNK)
            while chunk := os.read(descriptor, _CHUNK):
                content += chunk
        finally:
            os.close(descriptor)
        return content
    except OSError:
        where, then = Path(place, name), f"`{command('lock', Path(place).name)}` makes it"
        raise UserError(Problem(where=paths.shown(where), cause="is missing", then=then)) from None


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _leftovers(files: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Requirement files in the folders of `files` that are none of them."""
    places = {folder / Path(name).parent for name in files}
    return [path for place in places for path in place.glob("*.txt") if str(path.relative_to(folder)) not in files]
