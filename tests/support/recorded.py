"""Validation runs that results/ holds: their lines, and the evidence of those that can be judged again."""

import json
import lzma
from functools import cache
from typing import Any

from images.site import records
from images.site.records import RunLine
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


def data(run_id: str) -> dict[str, Any]:
    """evidence.json of a run as plain JSON."""
    found: dict[str, Any] = json.loads(text(run_id))
    return found
