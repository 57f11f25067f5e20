"""A push on a worker, as plain data: the job that it gets, and the result that it gives back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from images.config.platforms import Platform
from images.fleet.results import JobResult
from images.nightly.results import Row
from images.publish.compression import Compression


class DeliveryJob(Row):
    """All that a worker is told. No key, no verdict and no tag is in it: signing and naming are the submitter's."""

    schema_version: Literal[1] = 1
    image: str
    digest: str
    """Of the configuration: what was pulled must have it."""
    reference: str
    """What is pulled: `HOST/NAME@sha256:...`."""
    to: str
    """`REGISTRY/REPOSITORY` that gets the layers and a manifest for each compression, without a tag."""
    platform: Platform = Platform.AMD64
    compressions: tuple[Compression, ...]

    @property
    def key(self) -> str:
        """Names the job among all of a command."""
        return f"{self.image}-{self.digest.removeprefix('sha256:')[:12]}-push"


class DeliveryResult(JobResult):
    """What a worker stored, or `problems`. The submitter reads each manifest in the registry before it is named.

    That the layers are the image's, and what is installed, is the worker's statement.
    """

    manifests: dict[Compression, str] = {}
    """Compression -> `sha256:...`."""
    sent: Annotated[int, Field(ge=0)] = 0
    """Bytes of layers that were sent: those that were there, or were mounted, are not in it."""
    packages: dict[str, Any] = {}
    """What is installed (images/publish/read_packages.py): the submitter makes the SBOM of it.

    It must have the distributions that the evidence measured; of the others, this is all that is known.
    """
