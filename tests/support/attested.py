"""A small claim about pip, evidence for it, and verdicts, for tests of publishing."""

from typing import Any

from validate.claims import Claim, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import Verdict, judge

NAME, DIGEST = "cu126-torch27", "sha256:" + "ab" * 32
PIP = Claim(
    check="pins",
    subject="pip",
    tier=Tier.STATIC,
    probe="static.pins",
    statement="`import pip` is pip 26.3",
    expect={"version": "26.3", "locals": [""], "modules": ["pip"], "python": "3.11", "shares": []},
)
FOUND: dict[str, Any] = {
    "python": "3.11",
    "glibc": "2.36",
    "installed": [
        {"version": "26.3", "location": "/site", "tags": ["py3-none-any"], "has_record": True}
    ],
    "modules": {
        "pip": {"file": "/site/pip.py", "through": "/site", "owners": ["pip"], "providers": ["pip"]}
    },
}


def evidence(
    *claims: Claim, version: str = "26.3", outcome: Outcome = Outcome.COMPLETED
) -> Evidence:
    """Return evidence for these claims, in which each package is there at this version.

    `outcome`: how the probes ended.
    """
    claims_by_probe: dict[str, list[Claim]] = {}
    for claim in claims:
        claims_by_probe.setdefault(claim.probe, []).append(claim)

    records = []
    for probe, own_claims in claims_by_probe.items():
        measurements = tuple(
            Measurement(subject=claim.subject, seconds=0.1, evidence=_pins(claim.subject, version))
            for claim in own_claims
        )
        records.append(Record(probe=probe, outcome=outcome, seconds=1.0, measurements=measurements))
    return Evidence(image=NAME, digest=DIGEST, records=tuple(records), claims=claims)


def _pins(package: str, version: str) -> dict[str, Any]:
    """Return what static.pins measures of a package at a version."""
    module = {**FOUND["modules"]["pip"], "owners": [package], "providers": [package]}
    installed = [{**FOUND["installed"][0], "version": version}]
    return {**FOUND, "installed": installed, "modules": {"pip": module}}


def judged(*claims: Claim, **more: Any) -> Verdict:
    """Return the verdict of these claims about evidence that `evidence` makes of them."""
    measured = evidence(*claims, **more)
    return judge(measured.claim_set, measured)
