"""Makes the build context of an image: lock, wheels, suite and Dockerfile. Asks no engine.

Here are also the options of a build.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from images.building.validating import Compare, compare_nothing
from images.config.matrix import Sources
from images.context import base_images, origin, render
from images.context.hosting import HostSettings
from images.context.labels import BaseContext, Origin
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
from images.validation.derived_image import derived_rules
from images.wheels import prebuilt, private_wheels
from images.wheels.prebuilt import FindWheel
from validate.claims import Tier
from validate.derived import RULES

_FROM = re.compile(
    r"([\w.-]+(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
"""The name of an image as FROM takes it: https://pkg.go.dev/github.com/distribution/reference,
without its rare forms."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What images are built from, how, and what is measured afterwards."""

    sources: Sources
    """Matrix, facts, and the workspace with locks and pinned bases."""
    host: HostSettings
    """Package indexes, proxies and certificates of this machine."""
    out: Path
    """`NAME/` below it gets context, build record, evidence and reports."""
    cache: Path = field(default_factory=cache.folder)
    """Where downloads are stored: outside the project, so that clones share them."""
    base: str = base_images.AUTO
    """`auto`, or the reference of a custom base."""
    wheelhouse: Path | None = None
    """A folder with wheels that are taken before all others."""
    compiled: FindWheel = lambda _image, _pin: None
    """Finds or makes the wheels of packages that are published only as source."""
    offline: bool = False
    """No step reaches a network: all that is installed lies in the wheelhouse."""
    strict: bool = False
    """A build fails where an optional wheel can't be had."""
    no_cache: bool = False
    """BuildKit runs each step again."""
    tiers: Sequence[Tier] = ()
    """What to judge; empty: what this machine can."""
    gpus: GpuMode = GpuMode.AUTO
    reuse: bool = False
    """Whether the evidence of an earlier run with the same inputs may stand for a new one. Nightly
    runs and everything else that is recorded measure always."""
    compare: Compare = compare_nothing
    """Runs the GPU claims that failed in other images."""
    suffix: str = ""
    """Added to an image's name (-canary), so that a nightly build never takes the name itself."""


def base_context(base: Base, chosen_base: str, pinned: Mapping[str, str]) -> BaseContext:
    """Return the base that an image is built on, as FROM names it, without asking an engine.

    `base`: the one of the matrix (our list of images). `chosen_base`: option --base, `auto` or the
    reference of a user's own base (custom). `pinned`: reference of a base -> its recorded digest.
    With `auto` the result is the matrix's base, by its recorded digest, else by its tag.

    `origin` of the result says which it is: `digest`, `tag` or `custom`. What a custom base brings
    is not known here: the build installs Debian's Python in it. Raises UserError if `chosen_base`
    is no image reference.
    """
    if chosen_base != base_images.AUTO:
        if not _FROM.fullmatch(chosen_base):
            then = (
                "write --base NAME:TAG (debian:bookworm-slim, say), HOST/NAME:TAG or "
                "NAME@sha256:DIGEST"
            )
            raise wrong(f"--base {chosen_base}", "this is no name of an image", then)
        return BaseContext(reference=chosen_base, origin="custom")
    digest = pinned.get(base.reference, "")
    reference = base_images.by_digest(base, digest) if digest else base.reference
    origin_of_base: Origin = "digest" if digest else "tag"
    # The matrix itself may name a base of the user.
    if base.custom:
        origin_of_base = "custom"
    return BaseContext(reference=reference, origin=origin_of_base, digest=digest)


class Prepared(NamedTuple):
    """What a build needs besides its base, and what its claims are made from."""

    wheels: prebuilt.Gathered
    """The wheels that no index has, and those that could not be had."""
    claim_context: ClaimContext
    """What the image's claims are made from, for any machine."""
    files: Context
    """The build context: path -> content, or file here."""


def suite_of_image(context: ClaimContext, sources: Sources) -> dict[str, bytes]:
    """Return the suite that an image carries: path -> content.

    With it go the image's claims, and the rules for images that are built on top of it.
    """
    files = dict(suite_files(image_claims(context)))
    rules = derived_rules(context.image, sources)
    files[RULES] = json.dumps(rules, indent=1, sort_keys=True).encode()
    return files


def prepare(image: Image, lock: Lock, base: BaseContext, options: BuildOptions) -> Prepared:
    """Gather wheels, make the suite that goes into the image, and render the Dockerfile.

    Raises UserError: a wheel must be compiled first, or an offline build lacks one.
    """
    # Wheels that no index has. An offline build also takes all others from the wheelhouse.
    refusal = "--offline reaches no network" if options.offline else ""
    fetch = partial(fetch_nothing, refusal) if refusal else None
    gathered = prebuilt.gather(
        image,
        wheelhouse=options.wheelhouse,
        # An official release's wheel: from the cache, else fetched, and compared with its hash.
        official=partial(prebuilt.obtain, cache=options.cache / "wheels", fetch=fetch),
        compiled=options.compiled,
    )
    # Wheels that only a private index has: fetched here, so that no build step needs its login.
    private = private_wheels.obtain(
        image,
        lock,
        cache=options.cache,
        wheelhouse=options.wheelhouse,
        refusal=refusal,
    )
    gathered = replace(gathered, files={**gathered.files, **private})
    wheels = dict(gathered.files)
    if options.offline:
        wheels |= prebuilt.locked_wheels(packages_to_install(lock), options.wheelhouse)

    # The suite, with the claims that the image carries itself: those for any machine, and without
    # the one about its layers, whose record may change while the image stays.
    claim_context = ClaimContext.from_lock(
        image,
        lock,
        options.sources.facts,
        missing=gathered.missing,
        custom_base=base.origin == "custom",
        outside=prebuilt.record_digests(image, gathered.files.values()),
    )
    suite = suite_of_image(claim_context, options.sources)

    # The recipe of the layers, which a label names.
    image_origin = origin.of_build(
        image,
        lock,
        base,
        options.sources.workspace.locks,
        wheels=gathered.digests(),
        missing=gathered.missing,
        has_wheelhouse=options.wheelhouse is not None,
    )
    recipe_digest = image_origin.recipe.digest if image_origin.recipe else ""

    files = render.render(
        image,
        lock.files,
        base,
        host=options.host.files(),
        wheels=wheels,
        missing=gathered.missing,
        offline=options.offline,
        suite=suite,
        recipe=recipe_digest,
    )
    return Prepared(gathered, replace(claim_context, origin=image_origin), files)


def packages_to_install(lock: Lock) -> list[Package]:
    """Return the packages that steps install by a lock, toolkit and tools too.

    The wheels of private indexes are left out: steps get them as files.
    """
    packages = chain.from_iterable(lock.layers.values())
    return [package for package in packages if not package.wheel]


def fetch_nothing(reason: str, _url: str, _target: Path) -> None:
    """Take the place of a download where none is allowed. Raises OSError with the reason."""
    raise OSError(reason)
