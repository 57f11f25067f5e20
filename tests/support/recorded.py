"""Validation runs that results/ holds: their lines, and the evidence of those that can be judged again."""

import json
import lzma
from dataclasses import replace
from functools import cache
from typing import Any

from images.site import records
from images.site.records import RunLine
from validate import checks
from validate.evidence import Evidence


@cache
def lines() -> dict[str, RunLine]:
    """Run ID -> line."""
    return {line.id: line for line in records.read()}


@cache
def text(run_id: str) -> str:
    """evidence.json of a run."""
    path = records.FOLDER / "evidence" / f"{run_id}.json.xz"
    return lzma.decompress(path.read_bytes()).decode()


def evidence(run_id: str) -> Evidence:
    return Evidence.loads(text(run_id))


def evidence_of_today(run_id: str) -> Evidence:
    """Return the evidence of a run without the claims that no check judges any more."""
    kept = evidence(run_id)
    claims = tuple(claim for claim in kept.claims if checks.judge_of(claim))
    return replace(kept, claims=claims, recorded_sha256="")


def line_of_today(run_id: str) -> RunLine:
    """Return the line that a run has by this evidence."""
    kept, line = evidence_of_today(run_id), lines()[run_id]
    keys = {claim.key for claim in kept.claims}
    tiers, claims = {}, {}
    for tier, by_status in line.claims.items():
        judged = {
            status: [key for key in found if key in keys] for status, found in by_status.items()
        }
        claims[tier] = {status: found for status, found in judged.items() if found}
        counts = {status: len(found) for status, found in claims[tier].items()}
        tiers[tier] = line.tiers[tier].model_copy(update={"counts": counts})
    return line.model_copy(
        update={"claims": claims, "tiers": tiers, "evidence_sha256": kept.sha256}
    )


def data(run_id: str) -> dict[str, Any]:
    """evidence.json of a run as plain JSON."""
    found: dict[str, Any] = json.loads(text(run_id))
    return found
