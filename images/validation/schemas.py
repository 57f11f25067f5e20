"""The files of a validation run, as published: verdict.json and evidence.json (docs/schema/, by tools/schemas.py)."""

from __future__ import annotations

import json
from json import JSONDecodeError
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from images.errors import command, wrong
from images.validation.rows import ClaimRow, Row
from validate.claims import Claim
from validate.evidence import Evidence, Record
from validate.judging import Status

_FAULTS_SHOWN = 5
Seconds = Annotated[float, Field(ge=0)]
Digest = Annotated[str, Field(description="`sha256:...` of the image; empty where the image judged itself")]


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
    emulated: str = Field(default="", validate_default=False)
    """The emulator that ran its probe; only where one did."""
    hints: Annotated[list[HintRow], Field(min_length=1)] = Field(default=[], validate_default=False)
    """Only where something is not well and a known error explains it."""


class VerdictFile(Row):
    """verdict.json: an image, judged. It repeats no evidence, but names it."""

    schema_version: Literal[2]
    image: str
    digest: Digest
    evidence_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The `sha256` of the evidence.json that was judged."""
    overall: Status
    """FAIL if a required claim failed; PASS only if there are required claims and every one passed; else UNPROVEN."""
    claims: list[ClaimVerdictRow]


class EvidenceFile(Row):
    """evidence.json: everything measured in one image, and the claims it was measured for."""

    schema_version: Literal[2]
    image: str
    digest: Digest
    records: list[Record]
    host: dict[str, Any]
    """When it was measured (`date`, UTC), engine, cores, driver and GPUs as the host saw them."""
    claims: Annotated[list[Claim], Field(min_length=1)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Of the rest, as JSON with sorted keys and no spaces: tells a file that was edited or damaged. No signature."""


def parse_evidence(text: str) -> Evidence:
    """The content of an evidence.json.

    Raises EvidenceChangedError; JSONDecodeError; pydantic's ValidationError for what is no evidence of this version.
    """
    EvidenceFile.model_validate(json.loads(text))
    return Evidence.loads(text)


def read_evidence(path: Path) -> Evidence:
    """Read an evidence.json. Raises UserError: no such file, no evidence, no claims, changed since it was written."""
    try:
        return parse_evidence(path.read_text(encoding="utf-8"))
    except OSError as error:
        cause = f"can't be read: {error.strerror}"
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        more = f"; and {len(faults) - _FAULTS_SHOWN} more" if len(faults) > _FAULTS_SHOWN else ""
        cause = f"is no evidence: {'; '.join(faults[:_FAULTS_SHOWN])}{more}"
    except (JSONDecodeError, UnicodeDecodeError) as error:
        cause = f"is not JSON: {error}"
    except ValueError as error:
        cause = str(error)
    then = f"name an evidence.json as `{command('build')}` or `{command('validate')}` wrote it (out/NAME/evidence.json)"
    raise wrong(str(path), cause, then)
