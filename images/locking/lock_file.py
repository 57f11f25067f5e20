"""An image's lock as it lies in locks/: its whole Python closure, each package at one version with its hashes.

`locks/NAME/` holds `LAYER.txt` files that install with `--require-hashes --no-deps`, and `lock.json`: what they were
made from. A lock whose recorded inputs are not the image's is stale. The files of a layer name no image, so images
that share a torch share `torch.txt` byte for byte.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from images import errors
from images.config import paths
from images.config.platforms import Platform, of_machine
from images.errors import Problem, UserError, command, wrong
from images.host.cache import write_whole
from images.host.hashing import sha256
from images.locking import inputs, wheel_records
from images.locking.inputs import LockInputs, Package, lock_inputs
from images.locking.wheel_records import Known
from images.planning.image import Image

RECORD = "lock.json"
NO_LOCK = "no lock: can't be built here"
_HEADER = "# Made by `nox -s lock` from matrix.yaml; not edited by hand. Wheels for Linux {}, each by hash.\n"
_INPUTS = TypeAdapter(LockInputs)
_ENTRY = re.compile(
    r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[0-9][0-9a-z.!+]*)(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})+)"
)


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
    records: Known = field(default_factory=dict)
    """The RECORDs of its wheels, as far as they were read."""

    def packages(self) -> Iterator[Package]:
        """Those of the Python layers."""
        for layer in self.inputs.layers:
            yield from self.layers[layer]

    def versions(self, layers: Iterable[str]) -> dict[str, str]:
        return {package.name: package.version for layer in layers for package in self.layers[layer]}


class Status(StrEnum):
    """What the plan says of an image's lock."""

    PRESENT = "present"
    MISSING = "missing"
    STALE = "stale"


def state(image: Image, folder: Path) -> tuple[Status, tuple[str, ...]]:
    """Whether the image has a lock in the folder of locks and it is the image's; of a stale one what moved, in words.

    A damaged lock counts as stale.
    """
    place, wanted = folder / image.lock_name, lock_inputs(image)
    try:
        found = load(place)
    except UserError as error:
        if not (place / RECORD).is_file():
            return Status.MISSING, ()
        return Status.STALE, tuple(
            f"{problem.where}: {problem.cause}" for problem in error.problems
        )
    differences = list(inputs.differences(found.inputs, wanted))
    differences += [
        f"{name} is not what {RECORD} records" for name in found.edited if not differences
    ]
    return Status.STALE if differences else Status.PRESENT, tuple(differences)


def is_present(image: Image, folder: Path) -> bool:
    """Whether the image can be built by its lock."""
    return state(image, folder)[0] is Status.PRESENT


def states(images: Iterable[Image], folder: Path) -> dict[str, Status]:
    """Name -> its lock's status."""
    return {str(image.name): state(image, folder)[0] for image in images}


def blocked(image: Image, status: Status) -> str:
    """Why an image can't be built here, with the next command; empty: its lock is there."""
    if status is Status.PRESENT:
        return ""
    again = f"`{command('lock', image.lock_name)}`"
    if status is Status.STALE:
        return f"its lock is older than the pins: can't be built here; {again} makes it anew"
    return f"{NO_LOCK}; {again} makes it" + (
        f" where {urlsplit(image.index).hostname} answers" if image.index else ""
    )


def read(image: Image, folder: Path, known: Path | None = None) -> Lock:
    """The image's lock in the folder of locks, with the RECORDs of its wheels as far as that or `known` (another folder
    of locks) has them. Raises UserError: there is none, or it is older than the pins.
    """
    status, differences = state(image, folder)
    again = f"`{command('lock', image.lock_name)}`"
    where = f"{paths.shown(folder)}/{image.lock_name}"
    if status is Status.MISSING:
        reach = f"; it must reach {image.index}, which alone has this torch" if image.index else ""
        raise wrong(where, f"{image.name} has no lock", f"{again} makes it{reach}")
    if status is Status.STALE:
        cause = f"the lock is older than the pins, or damaged: {'; '.join(differences)}"
        committed = (
            f"; `git checkout {where}` brings back the committed one" if errors.IS_CHECKOUT else ""
        )
        raise wrong(where, cause, f"{again} makes a new one{committed}")
    lock = load(folder / image.lock_name)
    packages = [package for layer in lock.layers.values() for package in layer]
    of_others = wheel_records.read_for(packages, known) if known else {}
    return replace(lock, records={**of_others, **wheel_records.read_for(packages, folder)})


def load(place: Path) -> Lock:
    """The lock in a folder, stale or not. Raises UserError: a file is missing or damaged."""
    again = f"`{command('lock', place.name)}` makes it"
    try:
        data = json.loads((place / RECORD).read_bytes())
        made_from = _INPUTS.validate_python(data)
        digests = dict(data["sha256"].items())
        files = {
            f"{one}.txt": (place / f"{one}.txt").read_bytes()
            for one in (*made_from.layers, *made_from.alone)
        }
    except OSError as error:
        raise wrong(paths.shown(Path(error.filename)), "is missing", again) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise wrong(paths.shown(place / RECORD), "is damaged", f"{again} anew") from None
    layers = {
        name[:-4]: parse_requirements(content, str(place / name)) for name, content in files.items()
    }
    edited = tuple(name for name, content in files.items() if digests.get(name) != sha256(content))
    return Lock(inputs=made_from, files=files, layers=layers, edited=edited)


def written(lock: Lock) -> dict[str, bytes]:
    """File name -> content of a lock's folder."""
    always, made_from = ("python", "platform", "index", "layers", "alone"), asdict(lock.inputs)
    optional = ("from_source", "excluded", "overrides", "builders", "needs", "prebuilt")
    record = {
        name: made_from[name] for name in (*always, *optional) if made_from[name] or name in always
    }
    record["sha256"] = {name: sha256(content) for name, content in sorted(lock.files.items())}
    return {**lock.files, RECORD: f"{json.dumps(record, indent=2)}\n".encode()}


def differing(files: Mapping[str, bytes], folder: Path) -> tuple[str, ...]:
    """Paths that `write` would change, sorted: what `--check` shows."""
    lie = {path: (folder / path).read_bytes() for path in files if (folder / path).is_file()}
    changed = {path for path, content in files.items() if lie.get(path) != content}
    return tuple(
        sorted(changed | {str(path.relative_to(folder)) for path in _leftovers(files, folder)})
    )


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Put locks where they belong, and remove layers they no longer have."""
    for path in _leftovers(files, folder):
        path.unlink()
    put(files, folder)


def put(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files below the folder of locks, each whole or not at all; a lock's record last."""
    for name in sorted(files, key=lambda path: path.endswith(RECORD)):
        write_whole(folder / name, files[name])


def print_requirements(packages: Iterable[Package], platform: str = "x86_64") -> bytes:
    """A requirements file, in the order given. `platform` is uv's name of it, which begins with the machine's."""
    blocks = (
        " \\\n    ".join(
            [
                f"{package.name}=={package.version}",
                *(f"--hash=sha256:{text}" for text in package.hashes),
            ]
        )
        for package in packages
    )
    found = of_machine(platform.partition("-")[0]) or Platform.AMD64
    return (_HEADER.format(found.spoken) + "".join(f"{block}\n" for block in blocks)).encode()


@lru_cache(maxsize=1024)
def parse_requirements(content: bytes, where: str) -> tuple[Package, ...]:
    """The inverse of `print_requirements`.

    Raises UserError for anything else than `name==version` with hashes: an index address, a URL, a file, an option.
    """
    text = "\n".join(
        line for line in content.decode(errors="replace").splitlines() if not line.startswith("#")
    )
    found, problems = [], []
    for entry in filter(
        None, (" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines())
    ):
        if match := _ENTRY.fullmatch(entry):
            hashes = tuple(re.findall(r"[0-9a-f]{64}", match["hashes"]))
            found.append(Package(name=match["name"], version=match["version"], hashes=hashes))
        else:
            cause = f"{entry[:80]!r} is not `name==version` with sha256 hashes"
            then = f"`{command('lock', 'NAME')}` makes the file anew"
            problems.append(Problem(where=paths.shown(Path(where)), cause=cause, then=then))
    if problems:
        raise UserError(problems)
    return tuple(found)


def _leftovers(files: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Requirement files in the folders of `files` that are none of them."""
    places = {folder / Path(name).parent for name in files}
    return [
        path
        for place in places
        for path in place.glob("*.txt")
        if str(path.relative_to(folder)) not in files
    ]
