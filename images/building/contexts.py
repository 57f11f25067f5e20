"""An image's build context: lock, wheels, suite and Dockerfile put together. No engine is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from images.building.options import BuildOptions
from images.context import base_images, render
from images.context.labels import BaseContext
from images.context.render import Context
from images.errors import Problem, UserError
from images.host.hashing import sha256, sha256_of_file
from images.locking.lock_file import Lock
from images.planning.image import Base, Image
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims
from images.validation.containers import suite_files
from images.wheels import prebuilt
from images.wheels.prebuilt import WheelSource

_FROM = re.compile(
    r"([\w.-]+(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?", re.ASCII
)
"""An image as FROM takes it: https://pkg.go.dev/github.com/distribution/reference, without its rare forms."""


@dataclass(frozen=True, kw_only=True)
class PreparedContext:
    """A build context, and what it was made of."""

    gathered: prebuilt.Gathered
    claimed: ClaimContext
    """What the image's claims are written from, without the host of a validation run."""
    files: Context


def base_context(base: Base, wanted: str, pinned: Mapping[str, str]) -> BaseContext:
    """The base context without asking an engine. auto: the pinned digest, else the tag.

    Raises UserError if `wanted` is no image reference.
    """
    if wanted != base_images.AUTO:
        if not _FROM.fullmatch(wanted):
            then = "write NAME:TAG, HOST/NAME:TAG or NAME@sha256:..."
            raise UserError(Problem(where=f"--base {wanted}", cause="is no name of an image", then=then))
        return BaseContext(reference=wanted, origin="custom")
    if digest := pinned.get(base.reference, ""):
        return BaseContext(reference=f"{base.reference}@{digest}", origin="digest", digest=digest)
    return BaseContext(reference=base.reference, origin="tag")


def prepare(image: Image, lock: Lock, base: BaseContext, options: BuildOptions) -> PreparedContext:
    """Gather wheels, write the embedded suite, and render the Dockerfile with all that it mounts.

    Raises UserError: a wheel that must be compiled first, one that an offline build lacks.
    """
    fetch = _fetch_nothing if options.offline else options.fetch
    gathered = prebuilt.gather(
        image,
        wheelhouse=options.wheelhouse,
        official=WheelSource(cache=options.cache / "wheels", mirror=options.wheel_mirror, fetch=fetch),
        kept=base.kept,
        compiled=options.compiled,
    )
    stock = prebuilt.stock(lock, base.kept, options.wheelhouse) if options.offline else {}
    claimed = ClaimContext.of(
        image,
        lock,
        options.sources.facts,
        missing=gathered.missing,
        custom_base=base.python,
        outside=prebuilt.contents(image, gathered.files.values()),
    )
    return PreparedContext(
        gathered=gathered,
        claimed=claimed,
        files=render.render(
            image,
            lock.files,
            base,
            host=options.host.files(),
            wheels={**gathered.files, **stock},
            missing=gathered.missing,
            offline=options.offline,
            suite=suite_files(image_claims(claimed)),
        ),
    )


def _fetch_nothing(_url: str, _target: Path) -> None:
    raise OSError("--offline reaches no network")


def digests(files: Context) -> dict[str, str]:
    """Path -> sha256 of its content."""
    return {
        path: sha256(content) if isinstance(content, bytes) else sha256_of_file(content)
        for path, content in files.items()
    }
