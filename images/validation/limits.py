"""What a way to run containers can't give a validation run: claims that need it are unproven, with the reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from images.engine.runtime import EngineFacts
from validate.claims import ClaimSet
from validate.evidence import Evidence

Reasons = Mapping[str, str]
"""`ID SUBJECT` of a claim -> why it can't be measured there."""
_PODMAN_OWN = "Podman mounts no empty folder of a user's own without one on the host: judge this with Docker"
_NO_LAYERS = "it keeps no layers as they were built: judge this with a Docker Engine of the classic store"


def of_engine(claims: ClaimSet, facts: EngineFacts) -> Reasons:
    """Claims that an engine can't be asked for.

    Podman's tmpfs takes no owner (podman-run(1), `--mount`: no uid and gid).
    """
    found = {}
    for claim in claims.claims:
        reason = ""
        if (claim.id, claim.subject) == ("S10", "parent"):
            reason = _NO_LAYERS if facts.podman or facts.containerd_images else ""
        elif facts.podman:
            reason = _PODMAN_OWN if claim.expect.get("mount") == "own" else ""
        if reason:
            found[f"{claim.id} {claim.subject}"] = reason
    return found


def limited(claims: ClaimSet, reasons: Reasons) -> ClaimSet:
    """The same claims; those with a reason are unproven by it."""
    found = (replace(one, unproven=one.unproven or reasons.get(f"{one.id} {one.subject}", "")) for one in claims.claims)
    return ClaimSet(image=claims.image, claims=tuple(found))


def as_host(reasons: Reasons) -> dict[str, Any]:
    """For the `host` of evidence: what was not supported there."""
    return {"unsupported": dict(reasons)} if reasons else {}


def of_evidence(claims: ClaimSet, evidence: Evidence) -> ClaimSet:
    """Claims as evidence from such a place can answer them. Evidence can only lose by it: unproven is never green."""
    return limited(claims, evidence.host.get("unsupported") or {})
