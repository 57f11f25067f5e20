"""How images are built: one value from the command line to the last step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from images.config.matrix import Sources
from images.context.base_images import AUTO
from images.context.hosting import HostSettings
from images.engine import gpus
from images.host import cache
from images.wheels.prebuilt import Fetch, FindWheel
from validate.claims import Tier


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
    base: str = AUTO
    """A custom base image, in place of the matrix's."""
    wheelhouse: Path | None = None
    """Folder of wheels that no index has."""
    wheel_mirror: str = ""
    """Where official wheels are fetched from; empty: their releases."""
    compiled: FindWheel = lambda _image, _pin: None
    """Finds or makes the wheels of packages that are published as source only."""
    fetch: Fetch | None = None
    """URL and target; None: over HTTP."""
    offline: bool = False
    """No step reaches a network: all that is installed lies in the wheelhouse."""
    strict: bool = False
    """An optional package that can't be had is an error."""
    no_cache: bool = False
    tiers: Sequence[Tier] = ()
    """What to judge; empty: what this machine can."""
    gpus: str = gpus.AUTO
    suffix: str = ""
    """Added to an image's name (-canary), so that a nightly build never takes the name itself."""
