"""Finds the wheels that no index has: in a folder of the user, compiled here, or official ones."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from images.config import paths
from images.config.schema import Matrix
from images.config.wheel_tags import supported_tags
from images.context import pruner
from images.errors import Problem, UserError, command, failed, root_cause, wrong
from images.host import cache as host_cache
from images.host.hashing import sha256, sha256_of_file
from images.locking.inputs import TOOLS, Package
from images.locking.wheel_records import UNREADABLE, rows_of
from images.planning.image import Image, Pin, Prebuilt, has_extensions
from validate.environment import wheel_contents
from validate.judging import plural

if TYPE_CHECKING:
    from requests.auth import AuthBase

FindWheel = Callable[[Image, Pin], Path | None]
"""Finds or compiles the wheel of an image's pin; returns None if there is none."""
Obtain = Callable[[Prebuilt], Path]
"""Downloads an official wheel and returns its file: `obtain` with a cache and a way to fetch."""

_RECORD = "record.json"
UNLESS_USED = "unless you use it, nothing needs to be done: the image is built without it"
_NOT_COMPILED = "which no index has as a wheel, and which is not compiled for this image yet"


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Wheels that build steps get as files: of the pins that no lock holds, and private ones."""

    files: Mapping[str, Path]
    """File name -> wheel on this machine."""
    missing: Mapping[str, str]
    """Distribution, or `NAME extensions` (Pin.name_of_extensions) -> why the image has no such
    wheel.

    Labels and claims of the image repeat the text, so it names no machine, no error and no command.
    """
    details: Mapping[str, str]
    """The same keys -> what happened on this machine, and what to do about it."""

    def digests(self) -> dict[str, str]:
        """Return file name -> sha256 of each wheel, for the record of the build."""
        return {name: sha256_of_file(path) for name, path in self.files.items()}


def gather(
    image: Image,
    *,
    wheelhouse: Path | None,
    official: Obtain,
    compiled: FindWheel = lambda _image, _pin: None,
) -> Gathered:
    """Find a wheel for each pinned package of an image that is on no index, and so not in its lock.

    The result has the wheels, and reasons why the image goes without others. A wheel is looked for
    in three places, in this order:

    wheelhouse: a folder of the user. If it has the locked installer (uv), that is added as well.
    compiled: the wheels that were compiled here.
    official: downloads the publisher's wheel.

    Raises UserError if the wheelhouse does not exist or has two wheels that fit one pin, if an
    official wheel has another hash, or if there is no wheel for a pin that is not optional.
    """
    wheelhouse_wheels = _wheels_in(wheelhouse)
    wheels: list[Path] = []
    # What the image goes without, a package or the extensions of one -> why.
    reasons: dict[str, _Reason] = {}
    problems: list[Problem] = []
    for pin in image.pins:
        # The lock has a package with an `extension_source` as pure Python. If a wheel of it with
        # compiled extensions is found, the build installs that in its place.
        if pin.extension_source:
            extended_wheel = _extended_wheel(pin, image, wheelhouse_wheels, compiled)
            if extended_wheel:
                wheels.append(extended_wheel)
            else:
                reasons[pin.name_of_extensions] = _why_no_extensions(pin, image)

        if pin.locked:
            continue
        search = _search_wheel(pin, image, wheelhouse_wheels, official, compiled)
        if search.wheel:
            wheels.append(search.wheel)
        elif pin.optional:
            reasons[pin.name] = _why_missing(pin, image, search.download_problem)
        else:
            problems.append(search.download_problem or _no_wheel(pin, image))
    if problems:
        raise UserError(problems, code=1)

    wheels += _installers(image, wheelhouse_wheels)
    return Gathered(
        files={wheel.name: wheel for wheel in wheels},
        missing={name: reason.public for name, reason in reasons.items()},
        details={name: reason.local for name, reason in reasons.items()},
    )


class _Reason(NamedTuple):
    """Why an image goes without a wheel."""

    public: str  # what the image's labels and claims say
    local: str  # what happened on this machine, and the next step


class _Search(NamedTuple):
    """What the search for the wheel of a pin gave."""

    wheel: Path | None
    download_problem: Problem | None = None
    """Why the official wheel could not be downloaded; None: it was, or there is none."""


def _installers(image: Image, wheelhouse_wheels: Sequence[Path]) -> list[Path]:
    """Return the wheels of the locked installer (uv) that the user's folder has."""
    installers = []
    for requirement in TOOLS:
        name, _, version = requirement.partition("==")
        tool = Pin(name=name, version=version, layer="tools")
        installer = _in_wheelhouse(tool, image, wheelhouse_wheels)
        if installer:
            installers.append(installer)
    return installers


def _compile_command(pin: Pin, image: Image) -> str:
    """Return the command, in backticks, that compiles the wheel or the extensions of a pin."""
    return f"`{command('wheels', str(image.name), pin.source)}`"


def _extended_wheel(
    pin: Pin, image: Image, wheelhouse_wheels: Sequence[Path], compiled: FindWheel
) -> Path | None:
    """Return the wheel of a package with its compiled extensions; None if nobody compiled it."""
    # Ignore wheels of pure Python: the lock has one already.
    candidates = [path for path in wheelhouse_wheels if has_extensions(path.name)]
    return _in_wheelhouse(pin, image, candidates) or compiled(image, pin)


def _why_no_extensions(pin: Pin, image: Image) -> _Reason:
    """Return why an image goes without the compiled extensions of a package."""
    return _Reason(
        f"{pin.requirement}'s compiled extensions, which were not compiled for this image",
        f"{_compile_command(pin, image)} compiles them",
    )


def _no_wheel(pin: Pin, image: Image) -> Problem:
    """Return the problem that nobody has a wheel which an image needs."""
    return Problem(
        where=str(image.name),
        cause=f"needs {pin.requirement}, {_NOT_COMPILED}",
        then=f"{_compile_command(pin, image)} compiles it once, for every image that needs the "
        f"same wheel; `{command('build', str(image.name), '--compile')}` compiles it and builds "
        "the image; or give --wheelhouse a folder with a wheel of yours",
    )


def _search_wheel(
    pin: Pin,
    image: Image,
    wheelhouse_wheels: Sequence[Path],
    official: Obtain,
    compiled: FindWheel,
) -> _Search:
    """Look for the wheel of a pin: the user's, else one compiled here, else the official one.

    `compiled` finds or compiles the second, and `official` downloads the third. The result has the
    wheel, or None; and if a download failed, why. Raises UserError if a file has the name of the
    official wheel, but not its hash.
    """
    official_wheel = image.official_wheel(pin.name)
    own_wheel = _in_wheelhouse(pin, image, wheelhouse_wheels)
    # The user may give any build of a package. But a file with the official wheel's name must be
    # the official wheel: otherwise it is damaged, or somebody replaced it.
    if own_wheel and official_wheel and own_wheel.name == official_wheel.filename:
        then = "put the official file there, or give your own wheel the name of another build"
        require_hash(own_wheel, official_wheel, then)

    wheel = own_wheel or compiled(image, pin)
    if wheel or official_wheel is None:
        return _Search(wheel)
    try:
        return _Search(official(official_wheel))
    except NotFetched as error:
        problem = error.problems[0]
    # No index has a wheel of such a package, but the user can compile one.
    if pin.compiled:
        compile_command = _compile_command(pin, image)
        then = f"{problem.then}; or {compile_command} compiles one, which this command then finds"
        problem = replace(problem, then=then)
    return _Search(None, problem)


def _why_missing(pin: Pin, image: Image, download_problem: Problem | None) -> _Reason:
    """Return why an image goes without the wheel of an optional pin, and what the user can do.

    `download_problem` says why its official wheel could not be downloaded; None if facts.yaml knows
    no official wheel of it.
    """
    if download_problem:
        return _Reason(
            f"{pin.requirement}: its official wheel could not be fetched",
            f"{download_problem.cause} ({download_problem.where}); {download_problem.then}",
        )
    # No index has a wheel of such a package, but the user can compile one.
    if pin.compiled:
        return _Reason(
            f"{pin.requirement}: {_NOT_COMPILED}", f"{_compile_command(pin, image)} compiles it"
        )
    return _Reason(
        f"{pin.requirement}: no official wheel for this combination is known",
        "--wheelhouse FOLDER takes one of yours",
    )


def locked_wheels(packages: Iterable[Package], wheelhouse: Path | None) -> dict[str, Path]:
    """Find the wheels of all locked packages in the user's folder, for a build without a network.

    Returns file name -> path. Wheels are recognised by their sha256, whatever their names. Raises
    UserError that lists every package without a wheel there: all of them if there is no folder.
    """
    path_by_digest = {sha256_of_file(path): path for path in _wheels_in(wheelhouse)}
    wheels: dict[str, Path] = {}
    lacking: list[str] = []
    for package in packages:
        paths = [path_by_digest[digest] for digest in package.hashes if digest in path_by_digest]
        if paths:
            wheels[paths[0].name] = paths[0]
        else:
            lacking.append(f"{package.name} {package.version}")
    if lacking:
        cause = (
            f"{plural(len(lacking), 'wheel')} of the lock missing there, or with other contents: "
            f"{', '.join(sorted(set(lacking)))}"
        )
        then = (
            "`pip download --no-deps --dest FOLDER NAME==VERSION` on a machine with a network, "
            "then name that folder with --wheelhouse FOLDER"
        )
        raise wrong(str(wheelhouse or "--offline without --wheelhouse"), cause, then)
    return wheels


def fits(filename: str, pin: Pin, image: Image) -> bool:
    """Return whether the name of a wheel fits a pin (package and version) and an image.

    Its tags must fit the image's Python, glibc and processor. If the name says for which torch it
    was compiled, that must be the image's. False for a name that is not a wheel's.
    """
    try:
        name, version, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    if name != canonicalize_name(pin.name) or Version(version.public) != Version(pin.version):
        return False
    # Some publishers write CUDA's major version, torch's minor version and the C++ ABI into the
    # local version: +cu12torch2.7cxx11abitrue.
    abi = str(image.cxx11_abi).lower()
    image_build = f"cu{image.wheel_cuda.major}torch{image.name.torch}cxx11abi{abi}"
    wheel_build = version.local or ""
    if "torch" in wheel_build and wheel_build.lower() != image_build:
        return False
    return not tags.isdisjoint(supported_tags(image.python, image.base.glibc, image.name.platform))


def _wheels_in(wheelhouse: Path | None) -> Sequence[Path]:
    """Return the wheels in a folder, sorted; none for None. Raises UserError if it is no folder."""
    if wheelhouse is None:
        return ()
    if not wheelhouse.is_dir():
        raise wrong(str(wheelhouse), "this is no folder", "give --wheelhouse a folder of wheels")
    return sorted(wheelhouse.glob("*.whl"))


def _in_wheelhouse(pin: Pin, image: Image, wheels: Sequence[Path]) -> Path | None:
    """Return the wheel among the user's that fits a pin of an image; None if there is none.

    Raises UserError if two fit.
    """
    fitting = [path for path in wheels if fits(path.name, pin, image)]
    if len(fitting) > 1:
        names = ", ".join(path.name for path in fitting)
        cause = f"two wheels fit {pin.requirement}: {names}"
        raise wrong(str(fitting[0].parent), cause, "move all but one of them to another folder")
    return fitting[0] if fitting else None


Fetch = Callable[[str, Path], None]
"""Downloads a URL to a file. Raises OSError."""

_PATIENCE = 20.0
"""Seconds for a host to answer, and between two chunks of its answer."""


class NotFetched(UserError):  # noqa: N818  # said as an outcome
    """An official wheel could not be downloaded, as when no host answers."""


def obtain(wheel: Prebuilt, *, cache: Path, fetch: Fetch | None = None) -> Path:
    """Return the file of an official wheel in the folder `cache`, downloaded if it is not there
    yet.

    `fetch` downloads it, by default over HTTP. A file gets into the cache only if it is complete
    and has the hash of the table of official wheels. Raises NotFetched if the download fails, and
    UserError if the cached or the downloaded file has another hash.
    """
    target = cache / wheel.filename
    if target.exists():
        require_hash(target, wheel, f"`rm {paths.shown(target)}`: the next build fetches it anew")
        return target
    host_name = str(urlsplit(wheel.url).hostname)
    cache.mkdir(parents=True, exist_ok=True)
    # Each download has a folder of its own, because builds may fetch the same file at once.
    with tempfile.TemporaryDirectory(dir=cache, prefix=".") as folder:
        partial_file = Path(folder, wheel.filename)
        try:
            (fetch or download)(wheel.url, partial_file)
        except OSError as error:
            then = (
                f"download this wheel on a machine that reaches {host_name}, put it into a folder "
                "here, and give the command again with --wheelhouse FOLDER"
            )
            cause = root_cause(error)
            if cause.startswith("404"):
                then = (
                    f"{host_name} does not have this wheel: if it is your mirror (--wheel-mirror), "
                    "copy the wheel there; if not, put a wheel of yours into a folder, and give "
                    "the command again with --wheelhouse FOLDER"
                )
            raise NotFetched(Problem(where=wheel.url, cause=cause, then=then)) from None
        then = (
            "nothing was kept; ask whoever serves it: the release's file was replaced, or "
            "something on the way rewrites it. --wheelhouse FOLDER takes a wheel of yours"
        )
        require_hash(partial_file, wheel, then, host_name)
        partial_file.replace(target)
    return target


def require_hash(file: Path, wheel: Prebuilt, then: str, host_name: str = "") -> None:
    """Raise UserError unless a file has the sha256 of an official wheel.

    `then` is the next step for the user. `host_name` is the host that the file was just downloaded
    from; empty for a file that was on this machine already.
    """
    digest = sha256_of_file(file)
    if digest == wheel.sha256:
        return
    where = f"{host_name}: {wheel.filename}" if host_name else paths.shown(file)
    cause = (
        f"the file is refused: it has {file.stat().st_size} bytes with sha256 {digest}, and the "
        f"official wheel of {wheel.name} {wheel.version} has sha256 {wheel.sha256} (`prebuilt` in "
        "images/data/facts.yaml)"
    )
    raise failed(where, cause, then)


def download(url: str, target: Path, login: AuthBase | None = None) -> None:
    """Download a file over HTTP, with a login if one is given.

    Raises OSError, also if the answer breaks off.
    """
    from images.host import web  # here, because most builds download nothing

    web.download(url, target, patience=_PATIENCE, login=login)


def find_compiled(
    folder: Path, key: str, on_progress: Callable[[str], None] = lambda _text: None
) -> Path | None:
    """Return the compiled wheel with a recipe's key in the wheel cache `folder`; None if not there.

    `key` is PACKAGE-VERSION-HASH, the name of the wheel's folder. In it lies a record with the file
    name and the sha256. A wheel that is damaged is not returned: `on_progress` gets a warning.
    """
    place = folder / key
    if not place.exists():
        return None
    try:
        record = json.loads((place / _RECORD).read_text())
        wheel: Path = place / record["wheel"]
        expected_digest = record["sha256"]
    except FileNotFoundError:
        on_progress(f"{place} has no {_RECORD}: its wheel is not taken")
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        # The file can't be read, or is no JSON of the expected form.
        on_progress(f"{place / _RECORD} can't be read ({error}): its wheel is not taken")
        return None

    try:
        digest = sha256_of_file(wheel)
    except OSError as error:
        on_progress(f"{wheel} can't be read: {error.strerror}")
        return None
    if digest != expected_digest:
        on_progress(f"{wheel} is not what its record says: not taken")
        return None
    return wheel


def store_compiled(
    folder: Path, key: str, filename: str, content: bytes, record: Mapping[str, Any]
) -> Path:
    """Store a compiled wheel and its record in the wheel cache `folder`, and return the wheel's
    path.

    `key` names its folder there, `filename` the wheel in it, and `content` are the wheel's bytes.
    Whatever the cache had under this key is replaced. Raises OSError if it can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as scratch:
        prepared = Path(scratch, key)
        prepared.mkdir()
        (prepared / filename).write_bytes(content)
        whole_record = {
            **record,
            "wheel": filename,
            "sha256": sha256(content),
            "bytes": len(content),
        }
        (prepared / _RECORD).write_text(json.dumps(whole_record, indent=1) + "\n")
        # Renaming a complete folder leaves no half-written wheel behind if the process is killed.
        place = folder / key
        if place.exists():
            place.rename(Path(scratch, "old"))
        prepared.rename(place)
    return place / filename


def wheel_finder(matrix: Matrix, folder: Path | None = None) -> FindWheel:
    """Return a function that finds the compiled wheel of an image's pin; it compiles nothing.

    A pin is a package at one version. `folder` is the wheel cache, by default the one of this user.
    """
    return partial(find_cached_wheel, matrix=matrix, folder=folder)


def find_cached_wheel(
    image: Image, pin: Pin, *, matrix: Matrix, folder: Path | None
) -> Path | None:
    """Return the wheel of a pinned package that was compiled for such an image.

    None if matrix.yaml does not say how the package is compiled, if it can't be compiled for this
    image, or if the wheel cache has no undamaged wheel of it. `folder` is that cache; None: the one
    of this user.
    """
    wheel_cache = folder or compiled_wheels()
    # `sources` of matrix.yaml has a row for each package that can be compiled; `pin.source` names
    # this package's row. The cache has a folder ROW-VERSION-HASH for each wheel.
    if pin.source not in matrix.sources or not any(wheel_cache.glob(f"{pin.source}-*")):
        return None
    # Imported here, because most machines have compiled nothing.
    from images.wheels.recipe import recipe_for

    # The recipe is everything that a wheel depends on, so its hash leads to the wheel.
    try:
        recipe = recipe_for(image, pin.source, matrix)
    except UserError:
        # The package can't be compiled for this image; the plan has warned, with the reason.
        return None
    return find_compiled(wheel_cache, recipe.key)


def compiled_wheels() -> Path:
    """Return the wheel cache of the current user, which all checkouts share."""
    return host_cache.folder() / "wheelhouse"


def record_digests(image: Image, files: Iterable[Path]) -> dict[str, str]:
    """Return package -> digest of its wheel's RECORD, for the packages of an image in `files`.

    `files` are wheels that no lock has, and a RECORD is a wheel's list of its files with hashes. A
    wheel is left out

    - if the image does not pin its package, or takes it from a private index: then the lock has it,
    - if the build prunes it (takes code for other GPUs out), which changes its RECORD,
    - or if it can't be read: its installation fails later, and says why.
    """
    pinned = {pin.name for pin in image.pins if pin.index is None}
    wheels: dict[str, Path] = {}
    for path in files:
        name = str(canonicalize_name(parse_wheel_filename(path.name)[0]))
        if name in pinned and not pruner.reads(image.pruning, name):
            wheels[name] = path

    digests = {}
    for name, path in wheels.items():
        try:
            with zipfile.ZipFile(path) as wheel:
                digests[name] = wheel_contents.digest_of(rows_of(wheel))
        except UNREADABLE:
            continue
    return digests


def expected_wheels(
    image: Image, missing: Collection[str], find_wheel: FindWheel, cache: Path
) -> dict[Path, str]:
    """Return the wheels that are in no index and that a build of an image here would use.

    The result is the path of a wheel -> its sha256. Nothing is downloaded: an official wheel need
    not exist yet at its path below `cache`.

    missing: what the image was built without: packages, or `NAME extensions` for the compiled
        extensions of a package that it has as pure Python.
    find_wheel: finds a wheel that was compiled here. It is preferred to the official one.
    """
    digests = {}
    for pin in image.pins:
        if pin.extension_source:
            # The lock has this package as pure Python. Only a compiled wheel replaces that.
            name = pin.name_of_extensions
            official_wheel = None
        elif pin.locked:
            # The package comes from an index.
            continue
        else:
            name = pin.name
            official_wheel = image.official_wheel(pin.name)
        if name in missing:
            continue

        compiled_wheel = find_wheel(image, pin)
        if compiled_wheel:
            digests[compiled_wheel] = sha256_of_file(compiled_wheel)
        elif official_wheel:
            digests[cache / "wheels" / official_wheel.filename] = official_wheel.sha256
    return digests
