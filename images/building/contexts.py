"""An image's build context where no engine is asked: for `nox -s render` and `nox -s bake`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from images.config.facts import Facts
from images.context import base_images, render
from images.context.base_context import BaseContext
from images.context.hosting import HostSettings
from images.context.render import Context
from images.errors import Problem, UserError
from images.host.hashing import sha256, sha256_of_file
from images.locking import lock_file
from images.planning.image import Base, Image
from images.validation import embedded
from images.validation.claims.context import ClaimContext
from images.wheels import prebuilt
from images.wheels.prebuilt import FindWheel

_FROM = re.compile(
    r"([\w.-]+(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?", re.ASCII
)
"""An image as FROM takes it: https://pkg.go.dev/github.com/distribution/reference, without what nobody writes."""


@dataclass(frozen=True, kw_only=True)
class ContextOptions:
    """What contexts are made from, besides the image: where wheels that no index has may lie."""

    facts: Facts
    host: HostSettings
    cache: Path
    compiled: FindWheel
    wheelhouse: Path | None = None
    fetch: Callable[[str, Path], None] | None = None
    """URL and target; None: from the official releases."""


def base_context(base: Base, wanted: str, pinned: Mapping[str, str]) -> BaseContext:
    """The base `wanted`; auto: by its pinned digest, else by its tag. Raises UserError for what is no reference."""
    if wanted != base_images.AUTO:
        if not _FROM.fullmatch(wanted):
            then = "write NAME:TAG, HOST/NAME:TAG or NAME@sha256:..."
            raise UserError(Problem(where=f"--base {wanted}", cause="is no name of an image", then=then))
        return BaseContext(reference=wanted, origin="custom")
    if digest := pinned.get(base.reference, ""):
        return BaseContext(reference=f"{base.reference}@{digest}", origin="digest", digest=digest)
    return BaseContext(reference=base.reference, origin="tag")


def context(image: Image, on: BaseContext, options: ContextOptions) -> Context:
    """The context that a build of this image has, wheels and suite included. Raises UserError: no lock, no wheel."""
    locked = lock_file.read(image)
    gathered = prebuilt.gather(
        image,
        wheelhouse=options.wheelhouse,
        cache=options.cache / "wheels",
        fetch=options.fetch,
        compiled=options.compiled,
    )
    claimed = ClaimContext.of(image, locked, options.facts, missing=gathered.missing, custom_base=False)
    suite = embedded.suite(claimed)
    extras = render.Extras(host=options.host.files(), wheels=gathered.files, missing=gathered.missing, suite=suite)
    return render.render(image, locked.files, on, extras)


def digests(files: Context) -> dict[str, str]:
    """Path -> sha256 of its content."""
    return {
        path: sha256(content) if isinstance(content, bytes) else sha256_of_file(content)
        for path, content in files.items()
    }
