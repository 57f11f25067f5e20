"""Wheels that no index has: from a local wheelhouse, compiled here, or official ones by hash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from images.errors import Problem, UserError
from images.host.hashing import sha256_of_file
from images.locking.inputs import TOOLS
from images.locking.lock_file import Lock
from images.locking.uv import Package
from images.planning.image import Image, Pin, Prebuilt, has_extensions
from images.wheels.official import NotFetched, WheelSource, obtain, require_hash
from images.wheels.tags import supported_tags

FindWheel = Callable[[Image, Pin], Path | None]
"""Finds, or makes, a wheel that no index has; None: there is none."""

_NOT_COMPILED = "which no index has as a wheel, and which is not compiled for this image yet"


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Wheels of the pins that no lock holds."""

    files: Mapping[str, Path]
    """File name -> wheel on this machine."""
    missing: Mapping[str, str]
    """Distribution -> why it could not be had."""

    def digests(self) -> dict[str, str]:
        """File name -> sha256, for the build's record."""
        return {name: sha256_of_file(path) for name, path in self.files.items()}


def gather(
    image: Image,
    *,
    wheelhouse: Path | None,
    official: WheelSource,
    kept: Collection[str] = (),
    compiled: FindWheel = lambda _image, _pin: None,
) -> Gathered:
    """Find a wheel for each pin that no lock has: in the wheelhouse, then one that `compiled` has, then the official.

    `kept` are packages that the base has already. They stay pins of the image: a wheel is compiled for its torch.
    The locked installer (uv) in the wheelhouse is taken along: it makes builds without an index possible. Raises
    UserError for a wheelhouse that does not exist or holds two wheels that both fit, for official wheels that differ
    from their hash, and for every pin that can't be had and must.
    """
    listing = _listing(wheelhouse)
    files: dict[str, Path] = {}
    missing: dict[str, str] = {}
    lacking: list[Problem] = []
    for pin in image.pins:
        if pin.extensions:
            extended = None if pin.name in kept else _extended(pin, image, listing) or compiled(image, pin)
            if extended:
                files[extended.name] = extended
            else:
                missing[pin.lacking] = _without_extensions(pin, image, pin.name in kept)
        if pin.locked or pin.name in kept:
            continue
        prebuilt = next((row for row in image.prebuilt if row.name == pin.name), None)
        found, unfetched = _own(pin, image, listing, prebuilt) or compiled(image, pin), None
        if prebuilt and not found:
            try:
                found = obtain(prebuilt, official)
            except NotFetched as error:
                unfetched = _with_compiling(error.problem, image, pin)
        if found:
            files[found.name] = found
        elif pin.optional:
            missing[pin.name] = f"{pin.requirement}: {_reason(pin, image, unfetched)}"
        else:
            lacking.append(unfetched or _to_be_compiled(image, pin))
    if lacking:
        raise UserError(lacking, code=1)
    for requirement in TOOLS:
        name, _, version = requirement.partition("==")
        if installer := _in_wheelhouse(Pin(name=name, version=version, layer="tools"), image, listing):
            files[installer.name] = installer
    return Gathered(files=files, missing=missing)


def _own(pin: Pin, image: Image, listing: Sequence[Path], prebuilt: Prebuilt | None) -> Path | None:
    """The wheelhouse's wheel. One that bears the official one's name must be it."""
    found = _in_wheelhouse(pin, image, listing)
    if found and prebuilt and found.name == prebuilt.filename:
        require_hash(found, prebuilt, "put the official file there, or give a wheel of your own another build's name")
    return found


def _extended(pin: Pin, image: Image, listing: Sequence[Path]) -> Path | None:
    """The wheelhouse's wheel with a package's compiled extensions: one of pure Python is the lock's."""
    return _in_wheelhouse(pin, image, [path for path in listing if has_extensions(path.name)])


def _without_extensions(pin: Pin, image: Image, kept: bool) -> str:
    """Why an image goes without a package's compiled extensions, in one sentence: its labels say it to everybody."""
    what = f"{pin.requirement}'s compiled extensions"
    if kept:
        return f"{what}: the base brings its own {pin.name}"
    return f"{what}, which are not compiled for this image yet (`nox -s wheels -- {image.name} {pin.extensions}`)"


def _with_compiling(problem: Problem, image: Image, pin: Pin) -> Problem:
    then = f"{problem.then}, `nox -s wheels -- {image.name} {pin.name}` compiles one" if pin.compiled else problem.then
    return replace(problem, then=then)


def _reason(pin: Pin, image: Image, unfetched: Problem | None) -> str:
    """Why an image goes without a wheel, in one sentence: its labels say it to everybody."""
    if unfetched:
        return f"{unfetched.cause} ({unfetched.where}); {unfetched.then}"
    if pin.compiled:
        return f"{_NOT_COMPILED} (`nox -s wheels -- {image.name} {pin.name}`)"
    return "no official wheel for this combination is known; --wheelhouse FOLDER takes one of yours"


def _to_be_compiled(image: Image, pin: Pin) -> Problem:
    then = (
        f"`nox -s wheels -- {image.name} {pin.name}` compiles it once, for every image that asks the same; "
        "`nox -s build -- NAME --compile` does both; --wheelhouse FOLDER takes one of yours"
    )
    return Problem(where=str(image.name), cause=f"needs {pin.requirement}, {_NOT_COMPILED}", then=then)


def stock(locked: Lock, kept: Collection[str], wheelhouse: Path | None) -> dict[str, Path]:
    """The locked wheels that a build without a network installs, by file name, each of the lock's own hash.

    `kept` are packages that the base has already. Raises UserError with everything that the wheelhouse lacks.
    """
    return in_stock(
        [
            package
            for layer, packages in locked.layers.items()
            for package in packages
            if package.name not in kept or layer not in locked.inputs.layers
        ],
        wheelhouse,
    )


def in_stock(packages: Iterable[Package], wheelhouse: Path | None) -> dict[str, Path]:
    """The wheels of these packages in a wheelhouse, by file name, each of its own hash. Raises as `stock` does."""
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
        cause = (
            f"lacks {len(lacking)} locked wheels, or has them with other contents: {', '.join(sorted(set(lacking)))}"
        )
        then = "`pip download --no-deps NAME==VERSION` on a machine with a network, then --wheelhouse FOLDER"
        raise UserError(Problem(where=str(wheelhouse or "--offline without --wheelhouse"), cause=cause, then=then))
    return found


def fits(filename: str, pin: Pin, image: Image) -> bool:
    """Whether a wheel file is this pin for this image: name, version, Python, and the build if its name tells one."""
    try:
        name, version, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    if name != canonicalize_name(pin.name) or Version(version.public) != Version(pin.version):
        return False
    return not tags.isdisjoint(supported_tags(image.python, image.base.glibc, image.platform)) and _same_build(
        version.local or "", image
    )


def _same_build(local: str, image: Image) -> bool:
    """Some write CUDA major, torch minor and C++ ABI into the local version: +cu12torch2.7cxx11abitrue."""
    if "torch" not in local:
        return True
    abi = "true" if image.cxx11_abi else "false"
    return local.lower() == f"cu{image.wheel_cuda.major}torch{image.name.torch}cxx11abi{abi}"


def _listing(wheelhouse: Path | None) -> Sequence[Path]:
    if wheelhouse is None:
        return ()
    if not wheelhouse.is_dir():
        raise UserError(
            Problem(where=str(wheelhouse), cause="is no folder", then="give --wheelhouse a folder of wheels")
        )
    return sorted(wheelhouse.glob("*.whl"))


def _in_wheelhouse(pin: Pin, image: Image, listing: Sequence[Path]) -> Path | None:
    fitting = [path for path in listing if fits(path.name, pin, image)]
    if len(fitting) > 1:
        names = ", ".join(path.name for path in fitting)
        raise UserError(
            Problem(where=str(fitting[0].parent), cause=f"two wheels fit {pin.requirement}: {names}", then="keep one")
        )
    return fitting[0] if fitting else None
