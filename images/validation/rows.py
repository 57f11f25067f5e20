"""Rows of verdicts in files that are kept: lines of results/, records of a fleet. And the files of a validation run, as
published: verdict.json and evidence.json (docs/schema/, by tools/schemas.py)."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from images.errors import Problem, command, wrong
from validate.claims import Claim, Tier
from validate.evidence import SCHEMA_VERSION, Evidence, Record
from validate.harness import timing
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

STEP = "step"
Line = TypeVar("Line")
_REASON = 600
"""Characters of a reason that a line keeps."""
Seconds = Annotated[float, Field(ge=0)]
Digest = Annotated[
    str, Field(description="`sha256:...` of the image; empty where the image judged itself")
]


class Row(BaseModel):
    """Keys that are not listed are errors; the docstrings of fields are their descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ClaimRow(Row):
    """One claim, judged."""

    check: str
    """Its name: `pins`, `4bit-llama`, `attention`; `build` where there is no image to judge."""
    subject: str
    tier: Tier
    verdict: Status
    required: bool
    """A required claim that is not PASS is never green."""
    reason: str

    @property
    def key(self) -> str:
        return f"{self.check}/{self.subject}" if self.subject else self.check


class TierCount(Row):
    """One tier's claims, counted by verdict."""

    verdict: Status
    """FAIL if a required claim failed; PASS only if there are required claims and every one passed; else UNPROVEN."""
    counts: dict[Status, int]


class StepRow(Row):
    """A training step (`step`), measured once."""

    seconds: float
    """Median."""
    spread: float
    """Relative to it (validate/harness/timing.py)."""
    peak: int
    """Bytes of GPU memory."""
    loss: float
    """After the last step."""


def steps_of(claims: Iterable[ClaimVerdict]) -> dict[str, StepRow]:
    """Subject -> the step, of the claims `step` that were measured, and whose times nothing disturbed."""
    found = {}
    for one in claims:
        trained = one.evidence.get("trained") if one.claim.check == STEP else None
        if trained and not [*timing.disturbances(one.evidence["conditions"], trained["time"])]:
            row = {**trained["time"], "peak": trained["peak"], "loss": trained["losses"][-1]}
            found[one.claim.subject] = StepRow(**{key: row[key] for key in StepRow.model_fields})
    return found


def claim_rows(verdict: Verdict) -> tuple[ClaimRow, ...]:
    """Every claim of a verdict, as lines keep it."""
    return tuple(
        ClaimRow(
            check=one.claim.check,
            subject=one.claim.subject,
            tier=one.claim.tier,
            verdict=one.status,
            required=one.claim.required,
            reason=one.reason[:_REASON],
        )
        for one in verdict.claims
    )


def tier_counts(rows: Sequence[ClaimRow]) -> dict[Tier, TierCount]:
    """Each tier: FAIL if a required claim failed, PASS only if there are required ones and all passed."""
    found = {}
    for tier in (tier for tier in Tier if any(row.tier is tier for row in rows)):
        verdicts = [row.verdict for row in rows if row.tier is tier]
        required = {row.verdict for row in rows if row.tier is tier and row.required}
        passed = Status.PASS if required == {Status.PASS} else Status.UNPROVEN
        counts = {status: verdicts.count(status) for status in Status if status in verdicts}
        found[tier] = TierCount(
            verdict=Status.FAIL if Status.FAIL in required else passed, counts=counts
        )
    return found


def schema(model: Any, title: str) -> bytes:
    """JSON Schema of a file, or of its lines."""
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **TypeAdapter(model).json_schema(),
        "title": title,
    }
    return (json.dumps(found, indent=1, sort_keys=True) + "\n").encode()


def first_fault(error: ValidationError) -> str:
    """`PATH: MESSAGE` of the first thing that is wrong in a file."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def read_lines(
    path: Path, parse: Callable[[str], Line], what: str, problems: list[Problem]
) -> Iterator[tuple[str, Line]]:
    """Every line of a file with its place; none of a missing file. Bad ones are added to the problems."""
    for number, text in enumerate(
        path.read_text(encoding="utf-8").splitlines() if path.is_file() else (), 1
    ):
        try:
            yield f"{path.name}:{number}", parse(text)
        except ValidationError as error:
            problems.append(
                bad_line(f"{path.name}:{number}", f"is no {what}: {first_fault(error)}")
            )


def bad_line(where: str, cause: str) -> Problem:
    """Of a file that is committed."""
    return Problem(where=where, cause=cause, then="correct the line, or restore it from git")


def installed(evidence: Mapping[str, Any]) -> str:
    """The version in `pins`'s evidence, as the distribution's metadata has it; empty where it has none."""
    found = evidence.get("installed")
    return (
        str(found[0].get("version", ""))
        if isinstance(found, list) and found and isinstance(found[0], dict)
        else ""
    )


class HintRow(Row):
    """A known error that the claim's reason or evidence speaks of."""

    id: str
    cause: str
    fix: str
    source: str
    """A page, `OWNER/REPOSITORY#NUMBER`, or `seed:PAGE`."""


class ClaimVerdictRow(ClaimRow):
    """One claim, judged."""

    seconds: Seconds
    """What the measurement took."""
    hints: Annotated[list[HintRow], Field(min_length=1)] = Field(default=[], validate_default=False)
    """Only where something is not well and a known error explains it."""


class VerdictFile(Row):
    """verdict.json: an image, judged. It repeats no evidence, but names it."""

    schema_version: Literal[3]
    image: str
    digest: Digest
    evidence_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The `sha256` of the evidence.json that was judged."""
    overall: Status
    """FAIL if a required claim failed; PASS only if there are required claims and every one passed; else UNPROVEN."""
    claims: list[ClaimVerdictRow]


class EvidenceFile(Row):
    """evidence.json: everything measured in one image, and the claims it was measured for."""

    schema_version: Literal[3]
    image: str
    digest: Digest
    records: list[Record]
    host: dict[str, Any]
    """When it was measured (`date`, UTC), engine, cores, driver and GPUs as the host saw them."""
    claims: Annotated[list[Claim], Field(min_length=1)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Of the rest, as JSON with sorted keys and no spaces: tells a file that was edited or damaged. No signature."""


class OlderSchemaError(ValueError):
    """Evidence of a schema in which claims had numbers (`S5 bitsandbytes`)."""


def parse_evidence(text: str) -> Evidence:
    """The content of an evidence.json.

    Raises ValueError, as Evidence.loads; OlderSchemaError; JSONDecodeError; pydantic's ValidationError: no evidence.
    """
    data = json.loads(text)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version < SCHEMA_VERSION:
        raise OlderSchemaError(
            f"it is of schema version {version}, in which claims had numbers and not names"
        )
    EvidenceFile.model_validate(data)
    return Evidence.loads(text)


def read_evidence(path: Path) -> Evidence:
    """Read an evidence.json. Raises UserError: no such file, no evidence, no claims, changed since it was written."""
    try:
        return parse_evidence(path.read_text(encoding="utf-8"))
    except OSError as error:
        cause = f"can't be read: {error.strerror}"
    except ValidationError as error:
        cause = f"is no evidence: {first_fault(error)}"
    except (JSONDecodeError, UnicodeDecodeError) as error:
        cause = f"is not JSON: {error}"
    except ValueError as error:
        cause = str(error)
    then = f"name an evidence.json as `{command('build')}` or `{command('validate')}` wrote it (out/NAME/evidence.json)"
    raise wrong(str(path), cause, then)
