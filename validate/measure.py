"""Runs one probe in this process, which the suite or the fork server started for it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from validate import checks
from validate.claims import ClaimSet
from validate.evidence import plain


def measure(probe: str, claims: ClaimSet, out: Path) -> None:
    """Measure for the probe's claims and write a line a measurement to `out`, then the closing line.

    Whatever the probe raises ends the process: the missing closing line tells the rest.
    """
    asked = [claim for claim in claims.only([probe]).claims if not claim.unproven]
    with out.open("w", encoding="utf-8", buffering=1) as lines:
        started = time.monotonic()
        for subject, evidence in checks.module(probe).measure(asked):
            seconds = round(time.monotonic() - started, 3)
            lines.write(json.dumps({"subject": subject, "seconds": seconds, "evidence": plain(evidence)}) + "\n")
            started = time.monotonic()
        lines.write(json.dumps({"closing": True}) + "\n")
