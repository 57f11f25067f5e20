"""Evidence as a judge reads it, made without an engine: packages at versions."""

from datetime import UTC, datetime
from typing import Any

from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, MeasuredOn, Measurement, Outcome, Record

NAME = "cu126-torch27"
DIGEST = "sha256:" + "ab" * 32


def claim(subject: str = "pip", version: str = "25.0", check: str = "pins", **fields: Any) -> Claim:
    """Return a claim, by default that a package is installed at a version. `fields`: of Claim."""
    expect = {"version": version, "locals": [""], "modules": [], "python": "3.11"}
    defaults = {"tier": Tier.STATIC, "probe": "static.pins", "statement": "x", "expect": expect}
    return Claim(check=check, subject=subject, **{**defaults, **fields})


def claims(*image_claims: Claim) -> ClaimSet:
    return ClaimSet(image=NAME, claims=image_claims)


def installed(version: str = "25.0") -> dict[str, Any]:
    """Return what the probe of `pins` measures of a package at a version."""
    copy = {"version": version, "location": "/x", "has_record": True, "tags": []}
    return {"installed": [copy], "python": "3.11", "glibc": "2.36", "modules": {}}


def evidence_of(image_claims: ClaimSet, **measured: Any) -> Evidence:
    """Return evidence of an image that was measured for these claims. `measured`: by subject."""
    measurements = []
    for subject, evidence in measured.items():
        measurements.append(Measurement(subject=subject, seconds=0.1, evidence=evidence))
    record = Record(
        probe="static.pins",
        outcome=Outcome.COMPLETED,
        seconds=1,
        measurements=tuple(measurements),
    )
    host: MeasuredOn = {"date": datetime.now(UTC).isoformat(), "gpus": []}
    return Evidence(
        image=NAME, digest=DIGEST, records=(record,), host=host, claims=image_claims.claims
    )
