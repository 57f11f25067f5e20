"""The types of index.json, which holds all that the pages of the site show.

docs/schema/index.schema.json is made of them.
"""

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
"""Days after which the pages show a validation run as stale."""


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
    """FAIL if a required claim failed; PASS only if there are required claims and every one
    passed; else UNPROVEN."""
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
        """Return the verdict as of today: a PASS is UNPROVEN if today's claims were not all run."""
        if self.verdict is Status.PASS and self.never_run:
            return Status.UNPROVEN
        return self.verdict


class ImageRow(chooser.ImageSummary):
    """An image that the matrix accepts, or that was validated under its full name."""

    tags: list[str]
    """Its name and the aliases that mean it; with `published`, also the tag that never moves."""
    pins: dict[str, str]
    warnings: list[str]
    drift: str = ""
    """What its runs had that today's pins contradict: `transformers 4.57.6 where the pin is
    4.50.3 now`."""
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
    validated_on: date | None
    """Of a validated image: the day of its oldest tier of the gate."""
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

    @property
    def sentence(self) -> str:
        """Return what was validated of the current digest, as one sentence for its page.

        It reads `Validated: static PASS, gpu on H100 PASS, oldest run on 2026-11-21.` It also says
        if no run was on a GPU, and in which versions the runs differ from today's pins (`drift`).
        """
        tiers = list(Tier)
        runs = deciding_runs(self.runs)
        runs.sort(key=lambda run: (tiers.index(run.tier), run.gpus))
        if not runs:
            return "Not validated: no run of this image was recorded."

        verdicts = ", ".join(_verdict_text(run) for run in runs)
        days = [run.date for run in runs if run.date]
        since = f"oldest run on {min(days)}" if days else "date not recorded"
        has_gpu_run = any(run.tier is Tier.GPU for run in runs)
        no_gpu = "" if has_gpu_run else "; not validated on a GPU"
        drift = f" with {self.drift}" if self.drift else ""
        return f"Validated{drift}: {verdicts}, {since}{no_gpu}."


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
        """Return the GPUs that any image was validated on in a tier, sorted: the tier's columns.

        One empty name where there are none, so that the table has a column for the tier.
        """
        gpus: set[str] = set()
        for image in self.images:
            gpus |= {run.gpus for run in image.runs if run.tier is tier}
        return tuple(sorted(gpus)) or ("",)


def deciding_runs(runs: Sequence[TierRun]) -> list[TierRun]:
    """Return the newest run of each tier and GPU, of the current digest.

    They decide whether the image is validated. `runs`: of one image, newest first.
    """
    newest: dict[tuple[Tier, str], TierRun] = {}
    for run in runs:
        if run.current:
            newest.setdefault((run.tier, run.gpus), run)
    return list(newest.values())


def _verdict_text(run: TierRun) -> str:
    """Return `gpu on H100 PASS`, and how many of today's claims the run lacks."""
    on_gpus = f" on {run.gpus}" if run.gpus else ""
    never_run = f" but for {run.never_run} claims never run" if run.never_run else ""
    return f"{run.tier}{on_gpus} {run.verdict}{never_run}"


def dumps(index: Index) -> bytes:
    """Return the bytes of index.json."""
    return f"{index.model_dump_json(indent=1)}\n".encode()


def schema() -> bytes:
    """Return the JSON Schema of index.json, as bytes."""
    return rows.schema(Index, "index.json of the site")
