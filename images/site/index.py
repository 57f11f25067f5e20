"""The model of the site: the content of index.json, which every page shows. Pure; docs/schema/ has its schema."""

from collections.abc import Sequence
from datetime import date
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from images.planning import chooser
from images.validation import rows
from images.validation.rows import Row
from validate.claims import Tier
from validate.judging import Status

STALE_AFTER_DAYS = 14


class Validation(StrEnum):
    """Whether an image is validated, by the runs of its current digest."""

    VALIDATED = "validated"
    """Every tier of the gate is PASS with all claims of today, and nothing failed."""
    PARTLY = "partly"
    """A tier is PASS, nothing failed, and a tier of the gate was not validated or is UNPROVEN."""
    FAILED = "failed"
    """A required claim failed."""
    NEVER = "never"
    """No run of this digest was recorded, or no tier of it is PASS."""


class TierRun(Row):
    """One tier of an image, validated once."""

    tier: Tier
    gpus: str
    """`H100`, `2 x H200`; empty for the tiers without GPU."""
    verdict: Status
    """FAIL if a required claim failed; PASS only if there are required claims and every one passed; else UNPROVEN."""
    counts: dict[Status, int]
    """Claims by verdict, those that are not required among them."""
    never_run: Annotated[int, Field(ge=0)] = 0
    """Required claims that the matrix makes of this tier today and this run did not judge."""
    date: date | None
    """The day it was measured, UTC; null: not known. Stale `stale_after_days` later."""
    digest: str
    """The image that was measured. The verdict holds for no other."""
    current: bool
    """It is the image's `digest`."""
    source: str
    """Line of runs.jsonl, file of nightly runs, or published image that it was read from."""

    @property
    def standing(self) -> Status:
        """The verdict as of today: a claim that was never run is open."""
        return Status.UNPROVEN if self.verdict is Status.PASS and self.never_run else self.verdict


class ImageRow(chooser.ImageSummary):
    """An image that the matrix accepts, or that was validated under its full name."""

    tags: list[str]
    """Its name and the aliases that mean it; with `published`, also the tag that never moves."""
    pins: dict[str, str]
    warnings: list[str]
    drift: str = ""
    """What its runs had that today's pins contradict: `transformers 4.57.6 where the pin is 4.50.3 now`."""
    digest: str
    """Of the image whose runs count: what the tag means, else what was measured last; empty: never built."""
    bytes: int
    """Size of that image, unpacked, or of the newest build that was measured; 0: not recorded."""
    published: str
    """`HOST/NAME@sha256:...`; empty: not published, or the site was made without a registry."""
    transfer: int
    """Bytes of its compressed layers; 0 where it is not published."""
    get: Annotated[str, Field(pattern="^[ -~]+$")]
    """The command that gets it."""
    validation: Validation
    validated_on: date | None
    """Of a validated image: the day of its oldest tier of the gate."""
    runs: list[TierRun]
    """Newest first: the last ten of each tier and GPU, and those that decide `validation`."""
    page: str

    def newest(self, tier: Tier, gpus: str = "") -> TierRun | None:
        """The newest run of a tier, of the current digest where there is one."""
        own = [one for one in self.runs if (one.tier, one.gpus) == (tier, gpus)]
        return next((one for one in own if one.current), own[0] if own else None)

    @property
    def sentence(self) -> str:
        """What was validated, as one sentence."""
        current = sorted(
            deciding(self.runs), key=lambda one: (list(Tier).index(one.tier), one.gpus)
        )
        if not current:
            return "Not validated: no run of this image was recorded."
        days = [one.date for one in current if one.date]
        since = f", oldest run on {min(days)}" if days else ", date not recorded"
        verdicts = []
        for one in current:
            told = f"{one.tier}{f' on {one.gpus}' if one.gpus else ''} {one.verdict}"
            verdicts.append(
                f"{told} but for {one.never_run} claims never run" if one.never_run else told
            )
        on_gpu = "" if any(one.tier is Tier.GPU for one in current) else "; not validated on a GPU"
        had = f" with {self.drift}" if self.drift else ""
        return f"Validated{had}: {', '.join(verdicts)}{since}{on_gpu}."


class RefusedRow(Row):
    """A row of matrix.yaml that the plan refuses."""

    name: str
    torch: str | None
    reasons: list[str]
    nearest: list[str]
    """Accepted images that differ least."""


class Index(Row):
    """index.json: every image, its validation runs, and what is refused. Paths are relative to it."""

    schema_version: Literal[4] = 4
    date: date
    """The day it was made, UTC."""
    revision: str
    """Short hash of matrix and facts."""
    stale_after_days: int
    gate: list[Tier]
    """Tiers that must be PASS before an image counts as validated."""
    repository: str
    """Where images are published; empty: the site was made without a registry."""
    images: list[ImageRow]
    refused: list[RefusedRow]

    def columns(self, tier: Tier) -> tuple[str, ...]:
        """The GPUs that a tier was ever validated on; one column without a name where it never was."""
        found = {one.gpus for image in self.images for one in image.runs if one.tier is tier}
        return tuple(sorted(found)) or ("",)


def deciding(runs: Sequence[TierRun]) -> list[TierRun]:
    """The newest run of each tier and GPU, of the current digest."""
    found: dict[tuple[Tier, str], TierRun] = {}
    for one in runs:
        if one.current:
            found.setdefault((one.tier, one.gpus), one)
    return list(found.values())


def dumps(index: Index) -> bytes:
    """index.json."""
    return f"{index.model_dump_json(indent=1)}\n".encode()


def schema() -> bytes:
    """JSON Schema of index.json."""
    return rows.schema(Index, "index.json of the site")
