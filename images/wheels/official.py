"""Official wheels by hash: from their release, a mirror or the cache. What differs from its hash is refused."""

from __future__ import annotations

import http.client
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from images.config import paths
from images.errors import Problem, UserError
from images.host.hashing import sha256_of_file
from images.planning.image import Prebuilt

Fetch = Callable[[str, Path], None]
"""Gets URL and target. Raises OSError."""

_PATIENCE = 20.0
"""Seconds for a host to answer, and between two chunks of its answer."""


class NotFetched(Exception):  # noqa: N818  # said as an outcome
    """A wheel could not be had: nothing is wrong with it, as far as is known."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.cause)
        self.problem = problem


@dataclass(frozen=True, kw_only=True)
class WheelSource:
    """Where official wheels are looked for."""

    cache: Path
    """Folder of those that were fetched before."""
    mirror: str = ""
    """Address of a folder with the same file names, for sites that don't reach the releases; empty: the releases."""
    fetch: Fetch | None = None
    """None: over HTTP."""

    def __post_init__(self) -> None:
        if self.mirror and urlsplit(self.mirror).scheme not in ("http", "https"):
            then = "give http://HOST/FOLDER or https://HOST/FOLDER; a folder of this machine is --wheelhouse FOLDER"
            raise UserError(Problem(where="--wheel-mirror", cause="is no web address", then=then))

    def url(self, wheel: Prebuilt) -> str:
        """Where a wheel is fetched from."""
        return f"{self.mirror.rstrip('/')}/{quote(wheel.filename)}" if self.mirror else wheel.url

    def place(self, wheel: Prebuilt) -> str:
        """The same for people: a host, and of a mirror not even that, since images record why they lack a wheel."""
        return "--wheel-mirror" if self.mirror else str(urlsplit(wheel.url).hostname)


def obtain(wheel: Prebuilt, source: WheelSource) -> Path:
    """The file of an official wheel, in the cache. It is there whole and of its hash, or not at all.

    Raises NotFetched: no host answers, or not with a whole file. Raises UserError: the bytes are others than the
    table's, in the cache or as they came.
    """
    target = source.cache / wheel.filename
    if target.exists():
        require_hash(target, wheel, f"`rm {paths.shown(target)}`: the next build fetches it anew")
        return target
    source.cache.mkdir(parents=True, exist_ok=True)
    # A folder of its own: builds that run at once fetch the same file.
    with tempfile.TemporaryDirectory(dir=source.cache, prefix=".") as folder:
        partial = Path(folder, wheel.filename)
        try:
            (source.fetch or download)(source.url(wheel), partial)
        except OSError as error:
            cause = f"the official wheel of {wheel.name} {wheel.version} could not be fetched: {_short(error)}"
            then = "--wheel-mirror URL takes it from another server, --wheelhouse FOLDER from a folder"
            raise NotFetched(Problem(where=source.place(wheel), cause=cause, then=then)) from None
        then = "nothing was kept; ask whoever serves it: the release's file was replaced, or something on the way"
        require_hash(partial, wheel, f"{then} rewrites it. --wheelhouse FOLDER takes a wheel of yours", source)
        partial.replace(target)
    return target


def require_hash(file: Path, wheel: Prebuilt, then: str, source: WheelSource | None = None) -> None:
    """Raises UserError unless a file is the wheel of the table, byte for byte."""
    found = sha256_of_file(file)
    if found != wheel.sha256:
        where = f"{source.place(wheel)}: {wheel.filename}" if source else paths.shown(file)
        cause = (
            f"{file.stat().st_size} bytes with sha256 {found}; `prebuilt` in images/data/facts.yaml has {wheel.sha256} "
            f"for {wheel.name} {wheel.version}: refused"
        )
        raise UserError(Problem(where=where, cause=cause, then=then), code=1)


def download(url: str, target: Path) -> None:
    """Fetch a file whole. Redirects are followed. Raises OSError, also for an answer that breaks off."""
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as answer, target.open("wb") as file:
            shutil.copyfileobj(answer, file)
            promised = answer.headers.get("Content-Length")
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from None
    size = target.stat().st_size
    if promised and size != int(promised):
        raise OSError(f"the answer broke off after {size} of {promised} bytes")


def _short(error: OSError) -> str:
    """The cause without paths of this machine."""
    if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
        return str(error.reason)
    return error.strerror if error.filename and error.strerror else str(error)
