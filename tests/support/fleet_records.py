"""Make evidence without an engine: distributions at versions, as static.pins measures them."""

from datetime import UTC, datetime
from typing import Any

from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, MeasuredOn, Measurement, Outcome, Record

NAME = "cu126-torch27"
DIGEST = "sha256:" + "ab" * 32


def claim(subject: str = "pip", version: str = "25.0", number: str = "pins", **more: Any) -> Claim:
    """Return the claim that a distribution is there at a version. `more`: other fields of it."""
    expect = {"version": version, "locals": [""], "modules": [], "python": "3.11"}
    fields = {"tier": Tier.STATIC, "probe": "static.pins", "statement": "x", "expect": expect}
    return Claim(check=number, subject=subject, **{**fields, **more})


def installed(version: str = "25.0") -> dict[str, Any]:
    """Return what the probe of `pins` measures of a distribution at a version."""
    distribution = {"version": version, "location": "/x", "has_record": True, "tags": []}
    return {"installed": [distribution], "python": "3.11", "glibc": "2.36", "modules": {}}


def claims(*found: Claim) -> ClaimSet:
    return ClaimSet(image=NAME, claims=found)


def evidence_of(held_to: ClaimSet, **measured: Any) -> Evidence:
    """Return the evidence of an image that was held to these claims.

    `measured`: subject -> what was measured of it.
    """
    measurements = tuple(
        Measurement(subject=name, seconds=0.1, evidence=value) for name, value in measured.items()
    )
    record = Record(
        probe="static.pins", outcome=Outcome.COMPLETED, seconds=1, measurements=measurements
    )
    host: MeasuredOn = {"date": datetime.now(UTC).isoformat(), "gpus": []}
    return Evidence(image=NAME, digest=DIGEST, records=(record,), host=host, claims=held_to.claims)
