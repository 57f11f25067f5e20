"""The verdicts on an image as one in-toto test result (predicate version 0.1). Pure.

One statement tells of every tier: `cosign verify-attestation --policy` and Kyverno want each statement of a type to
fit. A policy could not ask for a tier that had a statement of its own, as there may be none. UNPROVEN is in no list of
tests, and makes no tier PASSED: consumers take `warnedTests` for passed ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NotRequired, TypedDict

from images.host.hashing import sha256
from images.publish import gate
from images.publish.attestation import Attestation
from validate.claims import ClaimSet, Tier
from validate.judging import Status

EXTENSION = "truetagTiers"
"""The field that policies read. The specification allows extension fields with names that nobody else uses."""
PASSED, FAILED, UNPROVEN = "PASSED", "FAILED", "UNPROVEN"


class TierResult(TypedDict):
    """What is said of one tier."""

    result: str
    """PASSED, FAILED or UNPROVEN: a required claim of it was not measured."""
    measuredOn: NotRequired[str]
    """RFC 3339, UTC. Missing where the evidence has no date: a policy with a limit then refuses."""
    evidence: str
    """`sha256:...` of the evidence.json that it stands on, as it is attached to the image."""
    gpus: list[str]
    driver: str
    unproven: list[str]
    """Required claims that could not be measured."""


class Resource(TypedDict):
    """A ResourceDescriptor (in-toto attestation framework)."""

    name: str
    digest: dict[str, str]
    mediaType: str


class Predicate(TypedDict):
    """in-toto.io/attestation/test-result/v0.1. Tests are named `TIER/CLAIM SUBJECT`."""

    result: str
    """PASSED where every tier that was judged is; which ones those are, `truetagTiers` says."""
    configuration: list[Resource]
    """The evidence.json of each trial: it holds the claims that were tested."""
    passedTests: list[str]
    warnedTests: list[str]
    """Always empty."""
    failedTests: list[str]
    truetagTiers: dict[str, TierResult]


def predicate(found: Sequence[Attestation], claims: ClaimSet | None) -> Predicate:
    """What all attestations of an image say together.

    `claims`: those that the matrix writes for the image. An attestation of fewer passes no tier. None: unknown.
    """
    tiers = {str(tier): _tier(found, tier, claims) for tier in Tier if any(_judged(one, tier) for one in found)}
    statuses: dict[str, set[Status]] = {}
    for one in (row for attestation in found for row in attestation.verdict.claims):
        statuses.setdefault(f"{one.claim.tier}/{one.claim.id} {one.claim.subject}", set()).add(one.status)
    failed = sorted(name for name, seen in statuses.items() if Status.FAIL in seen)
    return {
        "result": PASSED if tiers and all(one["result"] == PASSED for one in tiers.values()) else FAILED,
        "configuration": [_resource(digest) for digest in sorted({sha256(one.evidence_file) for one in found})],
        "passedTests": sorted(name for name, seen in statuses.items() if Status.PASS in seen and name not in failed),
        "warnedTests": [],
        "failedTests": failed,
        "truetagTiers": tiers,
    }


def faults(said: Mapping[str, Any], found: Sequence[Attestation]) -> Iterator[str]:
    """Where a signed test result says more than the attestations of the image do. Raises LookupError, TypeError."""
    files = {f"sha256:{sha256(one.evidence_file)}": one for one in found}
    for name, tier in said[EXTENSION].items():
        one = files.get(tier["evidence"])
        if one is None:
            yield f"the {name} tier stands on evidence that is not attached"
            continue
        if tier.get("measuredOn", "") != measured_on(one):
            yield f"the {name} tier was measured on {measured_on(one) or 'an unknown day'}"
        if tier["result"] == PASSED and gate.refusals([one.verdict], [Tier(name)], None):
            yield f"the {name} tier did not pass"
    if said["result"] == PASSED and any(tier["result"] != PASSED for tier in said[EXTENSION].values()):
        yield "it says PASSED, and not every tier passed"


def measured_on(one: Attestation) -> str:
    """RFC 3339 in UTC; empty where the evidence has no date."""
    try:
        return datetime.fromisoformat(str(one.host["date"])).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (LookupError, ValueError):
        return ""


def _tier(found: Sequence[Attestation], tier: Tier, claims: ClaimSet | None) -> TierResult:
    """A tier, by the newest attestation that passed it; where none did, by the newest that judged it."""
    complete = [one for one in found if not gate.refusals([one.verdict], [tier], claims)]
    decides = max(complete or [one for one in found if _judged(one, tier)], key=measured_on)
    passed = not gate.refusals([one.verdict for one in found], [tier], claims)
    failed = any(_names(one, tier, Status.FAIL) for one in found)
    said: TierResult = {
        "result": PASSED if passed else FAILED if failed else UNPROVEN,
        "evidence": f"sha256:{sha256(decides.evidence_file)}",
        "gpus": [str(gpu.get("name", "")) for gpu in decides.host.get("gpus") or ()],
        "driver": str(decides.host.get("driver") or ""),
        "unproven": _names(decides, tier, Status.UNPROVEN),
    }
    return {**said, "measuredOn": date} if (date := measured_on(decides)) else said


def _resource(digest: str) -> Resource:
    return {"name": "evidence.json", "digest": {"sha256": digest}, "mediaType": "application/json"}


def _judged(one: Attestation, tier: Tier) -> bool:
    return any(row.claim.tier is tier for row in one.verdict.claims)


def _names(one: Attestation, tier: Tier, status: Status) -> list[str]:
    """Required claims of a tier that have a verdict."""
    rows = [row.claim for row in one.verdict.of(status) if row.claim.tier is tier and row.claim.required]
    return sorted(f"{claim.id} {claim.subject}" for claim in rows)
