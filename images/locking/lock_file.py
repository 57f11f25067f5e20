"""Reads and writes locks: all Python packages of an image, each at one version with its hashes.

`locks/NAME/` has a requirements file for each layer (`torch.txt`), which installs with
`--require-hashes --no-deps`, and `lock.json`, which says what they were made from. A lock that was
made from other inputs than the image has now is stale. The files of a layer name no image, so
images with the same torch have the same `torch.txt`, byte for byte.
"""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from images.config import paths
from images.config.platforms import Platform, of_machine
from images.errors import Problem, UserError, command, wrong
from images.host.cache import write_whole
from images.host.hashing import sha256
from images.locking import inputs, wheel_records
from images.locking.inputs import LockInputs, Package, lock_inputs
from images.locking.wheel_records import Known
from images.planning.image import Image
from validate import installation

RECORD = "lock.json"
_SHORT_HASH = 12
"""Hexadecimal digits of a lock's short hash."""
NO_LOCK = "no lock: can't be built here"
_HEADER = (
    "# Made by `nox -s lock` from matrix.yaml; not edited by hand. "
    "Wheels for Linux {}, each by hash.\n"
)
_INPUTS = TypeAdapter(LockInputs)
"""Reads a LockInputs from what `lock.json` has; other keys there are ignored."""
# `torch==2.7.1+cu128 --hash=sha256:... --hash=sha256:...`
_ENTRY = re.compile(
    r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)"
    r"==(?P<version>[0-9][0-9a-z.!+]*)"
    r"(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})+)"
)


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The lock of an image, as it was read or is to be written."""

    inputs: LockInputs
    files: Mapping[str, bytes]
    """Requirements files (`torch.txt`) -> content; `lock.json` is not among them."""
    layers: Mapping[str, tuple[Package, ...]]
    """Layer (also `toolkit` and `tools`) -> its packages."""
    edited: tuple[str, ...] = ()
    """Files whose hash is not the recorded one: they were edited by hand, or merged."""
    wheel_records: Known = field(default_factory=dict)
    """What is known of the RECORDs of its wheels."""

    @property
    def hash(self) -> str:
        """Return a short hash of everything that the lock installs."""
        content = b""
        for name, text in sorted(self.files.items()):
            content += name.encode() + b"\0" + text + b"\0"
        return sha256(content)[:_SHORT_HASH]

    def packages(self) -> Iterator[Package]:
        """Yield the packages of the Python layers, without toolkit and tools."""
        for layer in self.inputs.layers:
            yield from self.layers[layer]

    def has_any_of(self, names: Container[str]) -> bool:
        """Return whether one of these packages is in a Python layer."""
        return any(package.name in names for package in self.packages())

    def versions(self, layers: Iterable[str]) -> dict[str, str]:
        """Return the versions of the packages of these layers, by name."""
        versions = {}
        for layer in layers:
            for package in self.layers[layer]:
                versions[package.name] = package.version
        return versions


class Status(StrEnum):
    """Whether an image can be built by its lock."""

    PRESENT = "present"
    MISSING = "missing"
    STALE = "stale"
    """It was made for other inputs (pins, Python, indexes) than the image has now."""
    DAMAGED = "damaged"
    """It can't be read, or was edited by hand."""


class State(NamedTuple):
    """The status of an image's lock, and of a stale or damaged one the reasons, in words."""

    status: Status
    differences: tuple[str, ...] = ()


def state(image: Image, folder: Path) -> State:
    """Return whether a folder has the lock of an image, and whether the lock is up to date.

    A lock lists the packages of an image with their hashes. Stale and damaged locks have reasons.
    """
    place = folder / image.lock_name
    try:
        lock = load(place)
    except UserError as error:
        # Every lock has this file. If it exists, the lock is damaged; otherwise there is none.
        if not (place / RECORD).is_file():
            return State(Status.MISSING)
        problems = [f"{problem.where}: {problem.cause}" for problem in error.problems]
        return State(Status.DAMAGED, tuple(problems))

    expected = lock_inputs(image)
    # The image's inputs also list packages to build from source. The list does not matter for a
    # lock that was made without it and has none of these packages.
    if not lock.inputs.from_source and not lock.has_any_of(image.from_source):
        expected = expected.without_sources()
    differences = list(inputs.differences(lock.inputs, expected))
    for package in lock.packages():
        # Such a package is on a private index only: matrix.yaml says so since the lock was made.
        if package.name in expected.reserved:
            differences.append(f"{package.name} is from the default index")
    # Edited files matter less: a lock with other inputs is made anew anyway.
    if differences:
        return State(Status.STALE, tuple(differences))
    edited = tuple(f"{name} is not what {RECORD} records" for name in lock.edited)
    return State(Status.DAMAGED if edited else Status.PRESENT, edited)


def is_present(image: Image, folder: Path) -> bool:
    """Return whether the folder of locks has a lock that the image can be built by."""
    return state(image, folder).status is Status.PRESENT


def states(images: Iterable[Image], folder: Path) -> dict[str, Status]:
    """Return the status of each image's lock, by the image's name."""
    return {str(image.name): state(image, folder).status for image in images}


def why_blocked(image: Image, status: Status) -> str:
    """Return why an image can't be built with its lock, with the next command; empty if it can."""
    if status is Status.PRESENT:
        return ""
    lock_command = f"`{command('lock', image.lock_name)}`"
    if status is Status.STALE:
        return f"its lock is older than the pins: can't be built here; {lock_command} makes it anew"
    if status is Status.DAMAGED:
        return f"its lock is damaged: can't be built here; {lock_command} makes it anew"
    # `image.index` is set if only that index has this torch. Not every machine reaches it.
    place = f" where {urlsplit(image.index).hostname} answers" if image.index else ""
    return f"{NO_LOCK}; {lock_command} makes it{place}"


def read_all(images: Iterable[Image], folder: Path) -> list[tuple[Image, Lock]]:
    """Return each image with its lock, from a folder of locks.

    Raises UserError with all locks that are missing, stale or damaged, before any work begins.
    """
    locked = []
    problems: list[Problem] = []
    for image in images:
        try:
            locked.append((image, read(image, folder)))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    return locked


def read(image: Image, folder: Path, known: Path | None = None) -> Lock:
    """Return the image's lock from a folder of locks, with the digests of its wheels' RECORDs.

    A RECORD lists the files of a wheel. The folder has the digests in a file of its own. Those that
    it lacks are taken from `known`, another folder of locks: a nightly run writes its locks into a
    new folder. Raises UserError if there is no lock, or if it is stale or damaged.
    """
    status, differences = state(image, folder)
    lock_command = f"`{command('lock', image.lock_name)}`"
    where = f"{paths.shown(folder)}/{image.lock_name}"
    if status is Status.MISSING:
        then = f"{lock_command} makes the lock"
        if image.index:
            then += f", on a machine that reaches {image.index}: no other index has this torch"
        raise wrong(where, f"{image.name} has no lock", then)
    if status is Status.STALE:
        cause = (
            "this lock was made for something else than matrix.yaml asks for (made for -> asked "
            f"for): {'; '.join(differences)}"
        )
        then = (
            f"if matrix.yaml is right, {lock_command} makes a new lock; if not, undo the edit in "
            "matrix.yaml"
        )
        raise wrong(where, cause, then)
    if status is Status.DAMAGED:
        then = f"{lock_command} makes a new one"
        if installation.IS_CHECKOUT:
            then += f"; `git checkout {where}` brings back the committed one"
        raise wrong(where, f"this lock is damaged: {'; '.join(differences)}", then)

    lock = load(folder / image.lock_name)
    packages = list(chain.from_iterable(lock.layers.values()))
    records = dict(wheel_records.read_for(packages, known)) if known else {}
    records.update(wheel_records.read_for(packages, folder))
    return replace(lock, wheel_records=records)


def load(place: Path) -> Lock:
    """Read the lock in a folder, whether or not it fits its image, without RECORDs of wheels.

    Raises UserError if a file is missing or damaged. A requirements file that was edited, and so
    has another sha256 than lock.json says, is no error: the lock lists it under `edited`.
    """
    lock_command = f"`{command('lock', place.name)}`"
    try:
        record = json.loads((place / RECORD).read_bytes())
        made_from = _INPUTS.validate_python(record)
        # Name of each requirements file -> sha256.
        digests = dict(record["sha256"].items())
        # Package that a private index alone has -> the file name of its wheel.
        wheels = {name: str(record["wheels"][name]) for name in made_from.private}
        # There is a file for each Python layer, and for `toolkit`, `tools` and `build`.
        files = {}
        for name in (*made_from.layers, *made_from.alone):
            files[f"{name}.txt"] = (place / f"{name}.txt").read_bytes()
    except OSError as error:
        file = paths.shown(Path(error.filename))
        raise wrong(file, "this file of the lock is missing", f"{lock_command} makes it") from None
    # These errors mean that the file is not JSON, or has another form.
    except (ValueError, KeyError, TypeError, AttributeError):
        then = f"{lock_command} makes it anew"
        raise wrong(paths.shown(place / RECORD), "it is not as truetag wrote it", then) from None

    # `torch.txt` is the requirements file of the layer `torch`.
    layers = {}
    edited = []
    for file_name, content in files.items():
        packages = []
        for package in parse_requirements(content, str(place / file_name)):
            packages.append(replace(package, wheel=wheels.get(package.name, "")))
        layers[file_name.removesuffix(".txt")] = tuple(packages)
        if digests.get(file_name) != sha256(content):
            edited.append(file_name)
    return Lock(inputs=made_from, files=files, layers=layers, edited=tuple(edited))


_ALWAYS_RECORDED = ("python", "platform", "index", "layers", "alone")
"""The inputs that every `lock.json` has."""
_RECORDED_IF_SET = (
    "from_source",
    "excluded",
    "overrides",
    "builders",
    "needs",
    "prebuilt",
    "private",
    "indexes",
)
"""The inputs that most locks do not have: an empty one is not written."""


def serialize(lock: Lock) -> dict[str, bytes]:
    """Return all files of a lock's folder: file name -> content.

    They are the requirements files of the layers (`torch.txt`), and `lock.json`. The latter has the
    inputs that the lock was made from (pins, Python, indexes) and the sha256 of each requirements
    file. For packages that only private indexes have, it also has the file names of the wheels.
    """
    made_from = asdict(lock.inputs)
    record = {name: made_from[name] for name in _ALWAYS_RECORDED}
    for name in _RECORDED_IF_SET:
        if made_from[name]:
            record[name] = made_from[name]
    wheels = {package.name: package.wheel for package in lock.packages() if package.wheel}
    if wheels:
        record["wheels"] = wheels
    record["sha256"] = {name: sha256(content) for name, content in sorted(lock.files.items())}
    return {**lock.files, RECORD: f"{json.dumps(record, indent=2)}\n".encode()}


def differing(files: Mapping[str, bytes], folder: Path) -> tuple[str, ...]:
    """Return the paths below the folder of locks that `write` would change or remove, sorted."""
    changed = {str(file.relative_to(folder)) for file in _leftovers(files, folder)}
    for path, content in files.items():
        file = folder / path
        if not file.is_file() or file.read_bytes() != content:
            changed.add(path)
    return tuple(sorted(changed))


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write locks below the folder of locks, and remove files of layers that they lost."""
    for file in _leftovers(files, folder):
        file.unlink()
    put(files, folder)


def put(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files (path below `folder` -> content), each whole or not at all.

    `lock.json` files come last: if writing is interrupted, the old hashes in them show it.
    """
    for path in sorted(files, key=lambda path: path.endswith(RECORD)):
        write_whole(folder / path, files[path])


def print_requirements(packages: Iterable[Package], platform: str = "x86_64") -> bytes:
    """Return a requirements file with hashes, in the order of the packages.

    An entry is `torch==2.7.1`, and below it a line `--hash=sha256:...` for each of its wheels.
    `platform` is uv's name of the platform that the wheels are for (`x86_64-manylinux_2_36`). The
    file's first line, a comment, names its processor.
    """
    # Locks are made for our platforms only, so `of_machine` knows the processor. (Only the types
    # need the `or`.)
    machine_name = platform.partition("-")[0]
    image_platform = of_machine(machine_name) or Platform.AMD64
    text = _HEADER.format(image_platform.spoken)
    for package in packages:
        lines = [f"{package.name}=={package.version}"]
        lines += [f"--hash=sha256:{digest}" for digest in package.hashes]
        text += " \\\n    ".join(lines) + "\n"
    return text.encode()


@lru_cache(maxsize=1024)
def parse_requirements(content: bytes, where: str) -> tuple[Package, ...]:
    """Return the packages of a requirements file that `print_requirements` made.

    `where` is the file's path, for messages. Raises UserError for every line that is not
    `name==version` with hashes, such as an index address, a URL, a file or an option.
    """
    lines = content.decode(errors="replace").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    # Lines that end with a backslash continue on the next one.
    lines_of_packages = text.replace("\\\n", " ").splitlines()

    packages, problems = [], []
    for line in lines_of_packages:
        # `_ENTRY` has single spaces, but in the file each hash is on an indented line of its own.
        entry = " ".join(line.split())
        if not entry:
            continue
        match = _ENTRY.fullmatch(entry)
        if match is None:
            cause = f"{entry[:80]!r} is not `name==version` with sha256 hashes"
            then = f"`{command('lock', Path(where).parent.name)}` makes the file anew"
            problems.append(Problem(where=paths.shown(Path(where)), cause=cause, then=then))
            continue
        hashes = re.findall(r"[0-9a-f]{64}", match["hashes"])
        package = Package(name=match["name"], version=match["version"], hashes=tuple(hashes))
        packages.append(package)
    if problems:
        raise UserError(problems)
    return tuple(packages)


def _leftovers(files: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Return requirements files on disk in the folders of `files` that are not among these."""
    leftovers = []
    for place in {folder / Path(path).parent for path in files}:
        for file in place.glob("*.txt"):
            if str(file.relative_to(folder)) not in files:
                leftovers.append(file)
    return leftovers
