"""Rows of verdicts in files that are kept: lines of results/, records of a fleet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from validate.claims import Tier
from validate.judge import Verdict
from validate.judging import Status

_REASON = 600
"""Characters of a reason that a line keeps."""


class Row(BaseModel):
    """Keys that are not listed are errors; the docstrings of fields are their descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ClaimRow(Row):
    """One claim, judged."""

    id: str
    """Catalogue number: S1, C10, G3; `build` where there is no image to judge."""
    subject: str
    tier: Tier
    verdict: Status
    required: bool
    reason: str

    @property
    def key(self) -> str:
        return f"{self.id} {self.subject}".strip()

    @property
    def brief(self) -> str:
        """As a sentence names it: without a subject that says nothing."""
        return self.id if self.subject in ("", "environment") else self.key


class TierCount(Row):
    """One tier's claims, counted by verdict."""

    verdict: Status
    """FAIL if a required claim failed; PASS only if there are required claims and every one passed; else UNPROVEN."""
    counts: dict[Status, int]


def claim_rows(verdict: Verdict) -> tuple[ClaimRow, ...]:
    """Every claim of a verdict, as lines keep it."""
    return tuple(
        ClaimRow(
            id=one.claim.id,
            subject=one.claim.subject,
            tier=one.claim.tier,
            verdict=one.status,
            required=one.claim.required,
            reason=one.reason[:_REASON],
        )
        for one in verdict.claims
    )


def schema(model: type[BaseModel], title: str) -> bytes:
    """JSON Schema of a file, or of its lines."""
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema(), "title": title}
    return (json.dumps(found, indent=1, sort_keys=True) + "\n").encode()


def first_fault(error: ValidationError) -> str:
    """`PATH: MESSAGE` of the first thing that is wrong in a file."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def installed(evidence: Mapping[str, Any]) -> str:
    """The version in S1's evidence, as the distribution's metadata has it; empty where it has none."""
    found = evidence.get("installed")
    return str(found[0].get("version", "")) if isinstance(found, list) and found and isinstance(found[0], dict) else ""
