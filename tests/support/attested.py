"""A small claim about pip, evidence for it, and verdicts: what tests of publishing judge."""

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
    installed = [{**FOUND["installed"][0], "version": version}]

    def found(subject: str) -> dict[str, Any]:
        module = {**FOUND["modules"]["pip"], "owners": [subject], "providers": [subject]}
        return {**FOUND, "installed": installed, "modules": {"pip": module}}

    records = [
        Record(
            probe=probe,
            outcome=outcome,
            seconds=1.0,
            measurements=tuple(
                Measurement(subject=claim.subject, seconds=0.1, evidence=found(claim.subject))
                for claim in claims
                if claim.probe == probe
            ),
        )
        for probe in {claim.probe for claim in claims}
    ]
    return Evidence(image=NAME, digest=DIGEST, records=tuple(records), claims=claims)


def judged(*claims: Claim, **more: Any) -> Verdict:
    measured = evidence(*claims, **more)
    return judge(measured.claim_set, measured)
