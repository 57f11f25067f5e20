"""Fetches the wheels of packages that a private index alone has, for the build context.

The machine that builds fetches them, not a build step: so neither the login nor the address of a
private index ever reaches an engine. Each wheel has the name and hash that the lock has.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import requests

from images.errors import UserError, command, failed
from images.host import web
from images.host.hashing import sha256_of_file
from images.locking import index_access, uv
from images.locking.index_access import IndexLogin
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.planning.image import Image, PrivateIndex

_PATIENCE = 60.0
"""Seconds for an index to answer, and between two parts of a wheel."""


def locate(lock: Lock, cache: Path) -> dict[Path, str]:
    """Return the path of each private wheel of a lock in the cache -> its sha256.

    A wheel need not be in the cache yet.
    """
    digests = {}
    for package in lock.packages():
        if package.wheel:
            digests[_place(package, cache)] = package.hashes[0]
    return digests


def _place(package: Package, cache: Path) -> Path:
    """Return the place of a private wheel in the cache.

    The hash is part of it: a private index may have replaced a file by another of the same name.
    """
    return cache / "wheels" / package.hashes[0][:16] / package.wheel


def obtain(
    image: Image,
    lock: Lock,
    *,
    cache: Path,
    wheelhouse: Path | None = None,
    refusal: str = "",
    run: uv.Runner = uv.run,
) -> dict[str, Path]:
    """Return file name -> file of the private wheels of an image.

    They are the wheels of packages that only a private index has. They are taken from the user's
    folder `wheelhouse`, else from the folder `cache`, else from their index.

    `refusal`: why nothing may be fetched; empty: it may. `run` calls uv. Raises UserError if a
    wheel can't be had, or has another hash than the lock.
    """
    wheels: dict[str, Path] = {}
    to_fetch: list[Package] = []
    for package in lock.packages():
        # The lock names a file only for packages of private indexes.
        if not package.wheel:
            continue
        file = _find_file(package, cache, wheelhouse)
        if file:
            wheels[package.wheel] = file
        else:
            to_fetch.append(package)
    if not to_fetch:
        return wheels

    if refusal:
        files = ", ".join(package.wheel for package in to_fetch)
        cause = f"needs {files}, which only a private index has: {refusal}"
        then = "put the file into a folder, and name that with --wheelhouse FOLDER"
        raise failed(str(image.name), cause, then)
    urls = _find_urls(to_fetch, image, lock, run)
    for package in to_fetch:
        # A private package has one wheel in the lock, and so one hash.
        place = _place(package, cache)
        index = _index_of(package, lock)
        _fetch(package, urls[package.hashes[0]], index, place, command("build", str(image.name)))
        wheels[package.wheel] = place
    return wheels


def _find_file(package: Package, cache: Path, wheelhouse: Path | None) -> Path | None:
    """Return the file of a private wheel with the hash of the lock, if it is on this machine."""
    places = [_place(package, cache)]
    if wheelhouse and package.wheel:
        places.insert(0, wheelhouse / package.wheel)
    for place in places:
        if _has_hash(place, package):
            return place
    return None


def _has_hash(file: Path, package: Package) -> bool:
    """Return whether a file is there, and is the wheel that the lock has."""
    return file.is_file() and sha256_of_file(file) == package.hashes[0]


def _index_of(package: Package, lock: Lock) -> PrivateIndex:
    """Return the private index of a package, as the lock names it."""
    name = lock.inputs.private[package.name]
    return PrivateIndex(name=name, url=lock.inputs.indexes[name])


def _find_urls(
    packages: Sequence[Package], image: Image, lock: Lock, run: uv.Runner
) -> dict[str, str]:
    """Return the URLs of private wheels: sha256 -> URL.

    `run` calls uv, which asks the indexes. Raises UserError if an index does not answer, or no
    longer has one of the files.
    """
    pins = [pin for pin in image.pins if pin.name in lock.inputs.private]
    index_access.require_packages(pins, command("build", str(image.name)))
    exact = [f"{package.name}=={package.version}" for package in packages]
    urls = uv.find_urls(exact, lock.inputs, run=run, where=str(image.name))
    for package in packages:
        if package.hashes[0] not in urls:
            cause = (
                f"no longer has {package.wheel} with the sha256 that the lock has: the file was "
                "removed, or another one has taken its name"
            )
            then = (
                "ask those who run the index; if the change is meant, "
                f"`{command('lock', image.lock_name)}` locks what it has now; if you have the old "
                "file, give its folder with --wheelhouse"
            )
            raise failed(str(_index_of(package, lock)), cause, then)
    return urls


def _fetch(package: Package, url: str, index: PrivateIndex, target: Path, again: str) -> None:
    """Download a wheel to its place in the cache: whole and with the lock's hash, or not at all.

    `again` is the command to give when what was wrong is mended. Raises UserError if the download
    fails, or if the file has another hash.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Builds may fetch the same wheel at once.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as folder:
        partial = Path(folder, package.wheel)
        login = IndexLogin({index.name: index.url}, only_private=True)
        try:
            web.download(url, partial, patience=_PATIENCE, login=login)
        except requests.RequestException as error:
            problem = index_access.explain(error, package.wheel, index, again)
            raise UserError(problem, code=1) from None
        if not _has_hash(partial, package):
            cause = (
                f"the file {package.wheel} that came from this index is not the one in the lock "
                "(it has another sha256), and was not taken"
            )
            then = (
                f"if a proxy of yours rewrites downloads, go round it, then `{again}`; if the "
                f"index has a new file of this name, `{command('lock', 'NAME')}` takes it"
            )
            raise failed(str(index), cause, then)
        partial.replace(target)
