"""A build on a worker, as plain data: the job that it gets, and the result that it gives back."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import Field

from images.config.platforms import Platform
from images.fleet.model import LedgerJob
from images.fleet.results import JobResult
from validate.claims import Tier


class BuildJob(LedgerJob):
    """All that a worker is told. It brings an engine, and gets the rest from the index, a registry and the checkout."""

    schema_version: Literal[1] = 1
    image: str
    context: str
    """sha256 of the build context, as far as it depends on no machine: a checkout with another one is refused."""
    tiers: tuple[Tier, ...]
    """What the worker validates."""
    platform: Platform = Platform.AMD64
    label: str = ""
    """Tells the jobs of one image apart: `canary`, `bisect-0`."""
    through: str = ""
    """`REGISTRY/REPOSITORY` that the image is pushed to, by its digest. Empty: it is validated and removed."""
    base: str = "auto"
    bases: dict[str, str] = {}
    """Base image -> digest that is pinned for it."""
    wheel_mirror: str = ""
    """`url_digest` of it: the URL may have a token in it, and travels in the assignment alone."""
    strict: bool = False
    no_cache: bool = False
    pins: dict[str, str] = {}
    """Distribution -> version, where it is not the matrix's."""
    lock: dict[str, str] = {}
    """Path below `locks` -> text, of another lock than the checkout's."""
    over: str = ""
    """`HOST/NAME@sha256:...`: install the lock's versions as one layer over this image, instead of building it."""
    over_digest: str = ""
    """Of its configuration: what was pulled must have it."""

    @property
    def key(self) -> str:
        """Names the job among all. Two jobs with one key ask for the same in everything: `--resume` relies on it."""
        tiers = "-".join(map(str, self.tiers))
        asked = hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]
        return "-".join(filter(None, [self.image, asked, self.label, tiers]))

    def suffix(self, run: str) -> str:
        """Added to the image's name in the worker's engine, which other jobs may use at the same time."""
        return f"-{self.label or 'fleet'}-{hashlib.sha256(f'{run} {self.key}'.encode()).hexdigest()[:10]}"


def url_digest(url: str) -> str:
    """Tells URLs apart without showing them. Empty: there is none."""
    return url and hashlib.sha256(url.encode()).hexdigest()


class BuildResult(JobResult):
    """What came of a build: an image, or `problems`. The submitter judges the evidence again."""

    digest: str = ""
    """`sha256:...` of the configuration; empty: there is no image."""
    bytes: Annotated[int, Field(ge=0)] = 0
    reference: str = ""
    """`HOST/NAME@sha256:...`, of the manifest, where it was pushed."""
    labels: dict[str, str] = {}
    build: dict[str, Any] = {}
    """build.json."""
    evidence: str = ""
    """evidence.json."""
    cause: str = ""
    """Why these versions can't be built (images/nightly/judge.py); empty where something else failed."""
