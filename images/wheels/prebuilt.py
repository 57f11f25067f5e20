"""Wheels that no index has: from a local wheelhouse, compiled here, or official ones by hash."""

from __future__ import annotations

import csv
import json
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from images.config import paths
from images.config.names import Minor
from images.config.platforms import Platform
from images.config.schema import Matrix
from images.context import pruner
from images.errors import Problem, UserError, command, failed, root_cause, wrong
from images.host import cache as host_cache
from images.host.hashing import sha256, sha256_of_file
from images.locking.inputs import TOOLS, Package
from images.locking.wheel_records import rows_of
from images.planning.image import Image, Pin, Prebuilt, has_extensions
from validate.environment import wheel_contents

FindWheel = Callable[[Image, Pin], Path | None]
"""Finds, or makes, a wheel that no index has; None: there is none."""
Obtain = Callable[[Prebuilt], Path]
"""Gets an official wheel: `obtain`, with its cache and its mirror."""

_RECORD = "record.json"
_NOT_COMPILED = "which no index has as a wheel, and which is not compiled for this image yet"


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Wheels of the pins that no lock holds."""

    files: Mapping[str, Path]
    """File name -> wheel on this machine."""
    missing: Mapping[str, str]
    """Distribution -> that it could not be had, and why: the image's labels and claims say it, so it names no machine,
    no error text and no command."""
    details: Mapping[str, str]
    """Distribution -> what happened here, and what to do about it."""

    def digests(self) -> dict[str, str]:
        """File name -> sha256, for the build's record."""
        return {name: sha256_of_file(path) for name, path in self.files.items()}


def gather(
    image: Image,
    *,
    wheelhouse: Path | None,
    official: Obtain,
    in_base: Collection[str] = (),
    compiled: FindWheel = lambda _image, _pin: None,
) -> Gathered:
    """Find a wheel for each pin that no lock has: in the wheelhouse, then one that `compiled` has, then the official.

    `in_base` are packages that the base has already. They stay pins of the image: a wheel is compiled for its torch.
    The locked installer (uv) in the wheelhouse is taken along: it makes builds without an index possible. Raises
    UserError for a wheelhouse that does not exist or holds two wheels that both fit, for official wheels that differ
    from their hash, and for every pin that can't be had and must.
    """
    listing = _listing(wheelhouse)
    files: dict[str, Path] = {}
    missing: dict[str, str] = {}
    details: dict[str, str] = {}
    lacking: list[Problem] = []
    for pin in image.pins:
        compile_it = f"`{command('wheels', str(image.name), pin.extensions or pin.name)}`"
        if pin.extensions and pin.name in in_base:
            missing[pin.lacking] = (
                f"{pin.requirement}'s compiled extensions: the base brings its own {pin.name}"
            )
            details[pin.lacking] = "build on another base"
        elif pin.extensions:  # a wheel of pure Python is the lock's
            with_extensions = [path for path in listing if has_extensions(path.name)]
            if extended := _in_wheelhouse(pin, image, with_extensions) or compiled(image, pin):
                files[extended.name] = extended
            else:
                why = f"{pin.requirement}'s compiled extensions, which were not compiled for this image"
                missing[pin.lacking], details[pin.lacking] = why, f"{compile_it} compiles them"
        if pin.locked or pin.name in in_base:
            continue
        found = _wheel(pin, image, listing, official, compiled)
        if isinstance(found, Path):
            files[found.name] = found
            continue
        if pin.optional:
            why, details[pin.name] = _why_missing(pin, found, compile_it)
            missing[pin.name] = f"{pin.requirement}: {why}"
        elif found:
            lacking.append(found)
        else:
            then = (
                f"{compile_it} compiles it once, for every image that asks the same; "
                f"`{command('build', 'NAME', '--compile')}` does both; --wheelhouse FOLDER takes one of yours"
            )
            cause = f"needs {pin.requirement}, {_NOT_COMPILED}"
            lacking.append(Problem(where=str(image.name), cause=cause, then=then))
    if lacking:
        raise UserError(lacking, code=1)
    for requirement in TOOLS:
        name, _, version = requirement.partition("==")
        if installer := _in_wheelhouse(
            Pin(name=name, version=version, layer="tools"), image, listing
        ):
            files[installer.name] = installer
    return Gathered(files=files, missing=missing, details=details)


def _wheel(
    pin: Pin, image: Image, listing: Sequence[Path], official: Obtain, compiled: FindWheel
) -> Path | Problem | None:
    """The wheel of a pin that no lock has; why it could not be fetched; None: nobody has one."""
    row = next((row for row in image.prebuilt if row.name == pin.name), None)
    own = _in_wheelhouse(pin, image, listing)
    if own and row and own.name == row.filename:
        require_hash(
            own,
            row,
            "put the official file there, or give a wheel of your own another build's name",
        )
    if (found := own or compiled(image, pin)) or row is None:
        return found
    try:
        return official(row)
    except NotFetched as error:
        (problem,) = error.problems
        also = (
            f", `{command('wheels', str(image.name), pin.name)}` compiles one"
            if pin.compiled
            else ""
        )
        return replace(problem, then=f"{problem.then}{also}")


def _why_missing(pin: Pin, unfetched: Problem | None, compile_it: str) -> tuple[str, str]:
    """Why an image goes without a wheel, as it says itself; and what happened here, with the next step."""
    if unfetched:
        return (
            "its official wheel could not be fetched",
            f"{unfetched.cause} ({unfetched.where}); {unfetched.then}",
        )
    if pin.compiled:
        return _NOT_COMPILED, f"{compile_it} compiles it"
    return (
        "no official wheel for this combination is known",
        "--wheelhouse FOLDER takes one of yours",
    )


def stock(packages: Iterable[Package], wheelhouse: Path | None) -> dict[str, Path]:
    """The locked wheels of a build without a network, by file name. Raises UserError with all that is lacking."""
    held = {sha256_of_file(path): path for path in _listing(wheelhouse)}
    found: dict[str, Path] = {}
    lacking: list[str] = []
    for package in packages:
        path = next((held[digest] for digest in package.hashes if digest in held), None)
        if path:
            found[path.name] = path
        else:
            lacking.append(f"{package.name} {package.version}")
    if lacking:
        cause = f"lacks {len(lacking)} locked wheels, or has them with other contents: {', '.join(sorted(set(lacking)))}"
        then = "`pip download --no-deps NAME==VERSION` on a machine with a network, then --wheelhouse FOLDER"
        raise wrong(str(wheelhouse or "--offline without --wheelhouse"), cause, then)
    return found


def fits(filename: str, pin: Pin, image: Image) -> bool:
    """Whether a wheel file is this pin for this image: name, version, Python, and the build if its name tells one."""
    try:
        name, version, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    if name != canonicalize_name(pin.name) or Version(version.public) != Version(pin.version):
        return False
    # Some write CUDA major, torch minor and C++ ABI into the local version: +cu12torch2.7cxx11abitrue.
    build = (
        f"cu{image.wheel_cuda.major}torch{image.name.torch}cxx11abi{str(image.cxx11_abi).lower()}"
    )
    if "torch" in (local := version.local or "") and local.lower() != build:
        return False
    return not tags.isdisjoint(supported_tags(image.python, image.base.glibc, image.name.platform))


def _listing(wheelhouse: Path | None) -> Sequence[Path]:
    if wheelhouse is None:
        return ()
    if not wheelhouse.is_dir():
        raise wrong(str(wheelhouse), "is no folder", "give --wheelhouse a folder of wheels")
    return sorted(wheelhouse.glob("*.whl"))


def _in_wheelhouse(pin: Pin, image: Image, listing: Sequence[Path]) -> Path | None:
    fitting = [path for path in listing if fits(path.name, pin, image)]
    if len(fitting) > 1:
        names = ", ".join(path.name for path in fitting)
        raise wrong(
            str(fitting[0].parent), f"two wheels fit {pin.requirement}: {names}", "keep one"
        )
    return fitting[0] if fitting else None


Fetch = Callable[[str, Path], None]
"""Gets URL and target. Raises OSError."""

_PATIENCE = 20.0
"""Seconds for a host to answer, and between two chunks of its answer."""


class NotFetched(UserError):  # noqa: N818  # said as an outcome
    """A wheel could not be had: nothing is wrong with it, as far as is known."""


def obtain(wheel: Prebuilt, *, cache: Path, fetch: Fetch | None = None) -> Path:
    """Return the file of an official wheel, in the cache. It is there whole and of its hash, or not at all.

    `fetch` None: over HTTP. Raises NotFetched: no host answers, or not with a whole file. Raises UserError: the bytes
    are others than the table's, in the cache or as they came.
    """
    target = cache / wheel.filename
    if target.exists():
        require_hash(target, wheel, f"`rm {paths.shown(target)}`: the next build fetches it anew")
        return target
    place = str(urlsplit(wheel.url).hostname)
    cache.mkdir(parents=True, exist_ok=True)
    # A folder of its own: builds that run at once fetch the same file.
    with tempfile.TemporaryDirectory(dir=cache, prefix=".") as folder:
        partial = Path(folder, wheel.filename)
        try:
            (fetch or download)(wheel.url, partial)
        except OSError as error:
            cause = f"the official wheel of {wheel.name} {wheel.version} could not be fetched: {root_cause(error)}"
            then = "--wheelhouse FOLDER takes it from a folder"
            raise NotFetched(Problem(where=place, cause=cause, then=then)) from None
        then = "nothing was kept; ask whoever serves it: the release's file was replaced, or something on the way"
        require_hash(
            partial, wheel, f"{then} rewrites it. --wheelhouse FOLDER takes a wheel of yours", place
        )
        partial.replace(target)
    return target


def require_hash(file: Path, wheel: Prebuilt, then: str, place: str = "") -> None:
    """Raises UserError unless a file is the wheel of the table, byte for byte."""
    found = sha256_of_file(file)
    if found != wheel.sha256:
        cause = (
            f"{file.stat().st_size} bytes with sha256 {found}; `prebuilt` in images/data/facts.yaml has {wheel.sha256} "
            f"for {wheel.name} {wheel.version}: refused"
        )
        raise failed(f"{place}: {wheel.filename}" if place else paths.shown(file), cause, then)


def download(url: str, target: Path) -> None:
    """Fetch a file whole. Raises OSError, also for an answer that breaks off."""
    from images.host import web  # most builds fetch nothing

    web.download(url, target, patience=_PATIENCE)


def find_compiled(
    folder: Path, key: str, on_progress: Callable[[str], None] = lambda _text: None
) -> Path | None:
    """Return the wheel of a key in a folder of compiled wheels. One that is damaged is told and not taken."""
    place = folder / key
    try:
        record = json.loads((place / _RECORD).read_text())
        wheel: Path = place / record["wheel"]
        if sha256_of_file(wheel) == record["sha256"]:
            return wheel
    except FileNotFoundError:
        if not place.exists():
            return None
    except (OSError, ValueError, LookupError, TypeError):
        pass
    on_progress(f"{place} is not what its record says: not taken")
    return None


def store_compiled(
    folder: Path, key: str, filename: str, content: bytes, record: Mapping[str, Any]
) -> Path:
    """Put a wheel in, in place of whatever lay there. Return where it lies. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as scratch:
        made = Path(scratch, key)
        made.mkdir()
        (made / filename).write_bytes(content)
        whole = {**record, "wheel": filename, "sha256": sha256(content), "bytes": len(content)}
        (made / _RECORD).write_text(json.dumps(whole, indent=1) + "\n")
        place = folder / key
        if place.exists():
            place.rename(Path(scratch, "old"))
        made.rename(place)
    return place / filename


def wheel_finder(matrix: Matrix, folder: Path | None = None) -> FindWheel:
    """Return what looks for the wheel of an image's pin in the wheel cache."""

    def look(image: Image, pin: Pin) -> Path | None:
        row, place = pin.extensions or pin.name, folder or compiled_wheels()
        if row not in matrix.sources or not any(place.glob(f"{row}-*")):
            return None
        from images.wheels.recipe import recipe_for  # most machines have compiled nothing

        try:
            recipe = recipe_for(image, row, matrix)
        except UserError:  # nobody can compile it: the plan says why
            return None
        return find_compiled(place, recipe.key)

    return look


def compiled_wheels() -> Path:
    """The wheel cache of the person who runs this, which all checkouts share."""
    return host_cache.folder() / "wheelhouse"


_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Minor version of glibc -> the older name of its platform (PEP 600)."""


@cache
def supported_tags(
    python: Minor, glibc: Minor, platform: Platform = Platform.AMD64
) -> frozenset[Tag]:
    """Every tag of a wheel that installs on this Python and this glibc."""
    minors = range(
        min(_LEGACY), glibc.minor + 1
    )  # a manylinux tag names the oldest glibc that will do
    names = [f"manylinux_{glibc.major}_{minor}" for minor in minors]
    names += ["linux", *(name for minor, name in _LEGACY.items() if minor in minors)]
    platforms = [f"{name}_{platform.machine}" for name in names]
    version, interpreter = (python.major, python.minor), f"cp{python.digits}"
    own = cpython_tags(version, [interpreter], platforms)
    return frozenset([*own, *compatible_tags(version, interpreter, platforms)])


def record_digests(image: Image, files: Iterable[Path]) -> dict[str, str]:
    """Return distribution -> digest of its wheel's RECORD, of the image's own pins among these wheels.

    Those that a build prunes are left out: what that leaves of them is not known here.
    """
    names = {pin.name for pin in image.pins}
    found = {str(canonicalize_name(parse_wheel_filename(path.name)[0])): path for path in files}
    digests = {}
    for name, path in found.items():
        if name in names and not pruner.reads(image.pruning, name):
            # Of one that can't be read nothing is known: whoever installs it says why.
            unreadable = suppress(
                OSError, zipfile.BadZipFile, csv.Error, KeyError, UnicodeDecodeError
            )
            with unreadable, zipfile.ZipFile(path) as opened:
                digests[name] = wheel_contents.digest_of(rows_of(opened))
    return digests


def expected_wheels(
    image: Image, missing: Collection[str], compiled: FindWheel, cache: Path
) -> dict[Path, str]:
    """Return path -> sha256 of the wheels that a build on this machine would take for the pins that no lock has.

    As `gather` chooses, without a folder of the user's own: a compiled wheel before the official one, which need not
    lie there yet.
    """
    official = {wheel.name: wheel for wheel in image.prebuilt}
    digests = {}
    for pin in image.pins:
        name = pin.lacking if pin.extensions else pin.name
        if name in missing or (pin.locked and not pin.extensions):
            continue
        if path := compiled(image, pin):
            digests[path] = sha256_of_file(path)
        elif not pin.extensions and pin.name in official:
            wheel = official[pin.name]
            digests[cache / "wheels" / wheel.filename] = wheel.sha256
    return digests
