"""The types of index.json, which holds all that the pages of the site show.

docs/schema/index.schema.json is made of them.
"""

from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from images.planning import chooser
from images.site.status import TierRun, Validation
from images.validation import rows
from images.validation.rows import Row
from validate.claims import Tier


class ImageRow(chooser.ImageSummary):
    """An image that the matrix accepts, or that was validated under its full name."""

    tags: list[str]
    """Its name and the aliases that mean it; with `published`, also the tag that never moves."""
    pins: dict[str, str]
    warnings: list[str]
    status: str
    """What its runs proved, and what has moved since, as one sentence for its page."""
    digest: str
    """Of the image whose runs count: what the tag means, else what was measured last; empty:
    never built."""
    bytes: int
    """Size of that image, unpacked, or of the newest build that was measured; 0: not recorded."""
    published: str
    """`HOST/NAME@sha256:...`; empty: not published, or the site was made without a registry."""
    transfer: int
    """Bytes of its compressed layers; 0 where it is not published."""
    get: Annotated[str, Field(pattern="^[ -~]+$")]
    """The command that gets it."""
    validation: Validation
    runs: list[TierRun]
    """Newest first: the last ten of each tier and GPU, and those that decide `validation`."""
    page: str

    def newest(self, tier: Tier, gpus: str = "") -> TierRun | None:
        """Return the newest run of a tier on these GPUs; None if there is none.

        Runs of the image's current digest go before those of older builds, however old they are.
        `gpus`: `H100` or `2 x H200`; empty for the tiers without GPU.
        """
        runs = [run for run in self.runs if (run.tier, run.gpus) == (tier, gpus)]
        for run in runs:
            if run.current:
                return run
        return runs[0] if runs else None


class RefusedRow(Row):
    """A row of matrix.yaml that the plan refuses."""

    name: str
    torch: str | None
    reasons: list[str]
    nearest: list[str]
    """Accepted images that differ least."""


class Index(Row):
    """index.json: every image, its validation runs, and what is refused.

    Paths are relative to it.
    """

    schema_version: Literal[6] = 6
    date: date
    """The day it was made, UTC."""
    revision: str
    """Short hash of matrix and facts."""
    gate: list[Tier]
    """Tiers that must be PASS before an image counts as validated."""
    repository: str
    """Where images are published; empty: the site was made without a registry."""
    images: list[ImageRow]
    refused: list[RefusedRow]

    def columns(self, tier: Tier) -> tuple[str, ...]:
        """Return the GPUs that any image was validated on in a tier, sorted: the tier's columns.

        One empty name where there are none, so that the table has a column for the tier.
        """
        gpus: set[str] = set()
        for image in self.images:
            gpus |= {run.gpus for run in image.runs if run.tier is tier}
        return tuple(sorted(gpus)) or ("",)


def dumps(index: Index) -> bytes:
    """Return the bytes of index.json."""
    return f"{index.model_dump_json(indent=1)}\n".encode()


def schema() -> bytes:
    """Return the JSON Schema of index.json, as bytes."""
    return rows.schema(Index, "index.json of the site")
