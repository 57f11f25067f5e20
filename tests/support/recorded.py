"""Read the recorded runs in results/: their lines, and the evidence of those that have it."""

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
    """Return the lines of runs.jsonl by the run's id."""
    return {line.id: line for line in records.read()}


@cache
def text(run_id: str) -> str:
    """Return evidence.json of a run as text."""
    path = records.FOLDER / "evidence" / f"{run_id}.json.xz"
    return lzma.decompress(path.read_bytes()).decode()


def evidence(run_id: str) -> Evidence:
    """Return the evidence of a run."""
    return Evidence.loads(text(run_id))


def evidence_of_today(run_id: str) -> Evidence:
    """Return the evidence of a run without the claims that no check judges any more."""
    recorded = evidence(run_id)
    claims = tuple(claim for claim in recorded.claims if checks.judge_of(claim))
    return replace(recorded, claims=claims, recorded_sha256="")


def line_of_today(run_id: str) -> RunLine:
    """Return the line that a run would have by the evidence of today."""
    evidence = evidence_of_today(run_id)
    line = lines()[run_id]
    judged_keys = {claim.key for claim in evidence.claims}
    tiers, claims = {}, {}
    for tier, keys_by_status in line.claims.items():
        remaining = {}
        for status, keys in keys_by_status.items():
            judged = [key for key in keys if key in judged_keys]
            if judged:
                remaining[status] = judged
        claims[tier] = remaining
        counts = {status: len(keys) for status, keys in remaining.items()}
        tiers[tier] = line.tiers[tier].model_copy(update={"counts": counts})
    return line.model_copy(
        update={"claims": claims, "tiers": tiers, "evidence_sha256": evidence.sha256}
    )


def data(run_id: str) -> dict[str, Any]:
    """Return evidence.json of a run as plain JSON."""
    content: dict[str, Any] = json.loads(text(run_id))
    return content
