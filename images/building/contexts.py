"""How images are built, and their build context: lock, wheels, suite and Dockerfile. No engine is asked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from images.config.matrix import Sources
from images.context import base_images, origin, render
from images.context.hosting import HostSettings
from images.context.labels import BaseContext
from images.context.render import Context
from images.errors import wrong
from images.hardware.inventory import GpuMode
from images.host import cache
from images.locking.inputs import Package
from images.locking.lock_file import Lock
from images.planning.image import Base, Image
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from images.validation.containers import suite_files
from images.wheels import prebuilt
from images.wheels.prebuilt import Fetch, FindWheel
from validate.claims import Tier

_FROM = re.compile(
    r"([\w.-]+(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
"""An image as FROM takes it: https://pkg.go.dev/github.com/distribution/reference, without its rare forms."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What is built from, how, and what is measured afterwards."""

    sources: Sources
    """Matrix, facts, and the workspace with locks and pinned bases."""
    host: HostSettings
    out: Path
    """`NAME/` below it gets context, build record, evidence and reports."""
    cache: Path = field(default_factory=cache.folder)
    """Where downloads are kept: outside the project, so that clones share them."""
    base: str = base_images.AUTO
    wheelhouse: Path | None = None
    compiled: FindWheel = lambda _image, _pin: None
    """Finds or makes the wheels of packages that are published as source only."""
    fetch: Fetch | None = None
    """URL and target; None: over HTTP."""
    offline: bool = False
    """No step reaches a network: all that is installed lies in the wheelhouse."""
    strict: bool = False
    no_cache: bool = False
    tiers: Sequence[Tier] = ()
    """What to judge; empty: what this machine can."""
    gpus: GpuMode = GpuMode.AUTO
    suffix: str = ""
    """Added to an image's name (-canary), so that a nightly build never takes the name itself."""


def base_context(base: Base, wanted: str, pinned: Mapping[str, str]) -> BaseContext:
    """The base context without asking an engine. auto: the pinned digest, else the tag.

    Raises UserError if `wanted` is no image reference.
    """
    if wanted != base_images.AUTO:
        if not _FROM.fullmatch(wanted):
            then = "write NAME:TAG, HOST/NAME:TAG or NAME@sha256:..."
            raise wrong(f"--base {wanted}", "is no name of an image", then)
        return BaseContext(reference=wanted, origin="custom")
    if digest := pinned.get(base.reference, ""):
        return BaseContext(reference=f"{base.reference}@{digest}", origin="digest", digest=digest)
    return BaseContext(reference=base.reference, origin="tag")


class Prepared(NamedTuple):
    """What a build needs beside its base."""

    wheels: prebuilt.Gathered
    """Those that no index has, and what could not be had."""
    claim_context: ClaimContext
    """What the image's claims are written from, for any machine."""
    files: Context
    """The build context."""


def prepare(image: Image, lock: Lock, base: BaseContext, options: BuildOptions) -> Prepared:
    """Gather wheels, write the suite that goes into the image, and render the Dockerfile with all that it mounts.

    Raises UserError: a wheel that must be compiled first, one that an offline build lacks.
    """
    fetch = (
        partial(fetch_nothing, "--offline reaches no network") if options.offline else options.fetch
    )
    gathered = prebuilt.gather(
        image,
        wheelhouse=options.wheelhouse,
        official=partial(prebuilt.obtain, cache=options.cache / "wheels", fetch=fetch),
        in_base=base.installed,
        compiled=options.compiled,
    )
    wheels = dict(gathered.files)
    if options.offline:
        wheels |= prebuilt.stock(packages_to_install(lock, base), options.wheelhouse)

    claim_context = ClaimContext.from_lock(
        image,
        lock,
        options.sources.facts,
        missing=gathered.missing,
        custom_base=bool(base.python),
        outside=prebuilt.record_digests(image, gathered.files.values()),
    )
    made_of = origin.of_build(
        image,
        lock,
        base,
        options.sources.workspace.locks,
        wheels=gathered.digests(),
        missing=gathered.missing,
    )
    # The image's own claims know no layers: a layer's record may move on, and the image stays.
    own_claims = image_claims(claim_context)
    files = render.render(
        image,
        lock.files,
        base,
        host=options.host.files(),
        wheels=wheels,
        missing=gathered.missing,
        offline=options.offline,
        suite=suite_files(own_claims),
        recipe=made_of.recipe.digest if made_of.recipe else "",
    )
    return Prepared(gathered, replace(claim_context, origin=made_of), files)


def packages_to_install(lock: Lock, base: BaseContext) -> list[Package]:
    """Return the packages of a lock, without those that the base brings."""
    to_install = []
    for layer, packages in lock.layers.items():
        # The toolkit and the tools are no packages of the base's environment.
        is_in_environment = layer in lock.inputs.layers
        for package in packages:
            if not (is_in_environment and package.name in base.installed):
                to_install.append(package)
    return to_install


def fetch_nothing(why: str, _url: str, _target: Path) -> None:
    raise OSError(why)
