"""What a way to run containers can't give a trial: claims that need it are unproven, with the reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from images.engine.facts import EngineFacts
from validate.claims import AS_ARBITRARY_UID, AS_ROOT, HOST_PROBE, IN_OWN_CONTAINER, Claim, ClaimSet
from validate.evidence import Evidence

Reasons = Mapping[str, str]
"""`ID SUBJECT` of a claim -> why it can't be measured there."""
_KEY = "not_given"
_PODMAN_OWN = "Podman mounts no empty folder of a user's own without one on the host: judge this with Docker"
_APPTAINER_USER = "Apptainer runs containers as the user who starts them, never as another: judge this with Docker"
_APPTAINER_MOUNTS = "Apptainer has no volumes, and gives a folder of the host its owner: judge this with Docker"
_APPTAINER_SIZE = "Apptainer keeps no sizes of layers: judge this with Docker"
_APPTAINER_OWNERS = "the caller's: files that the image's own user may not read, as root's of mode 0600, are readable"


def of_engine(claims: ClaimSet, facts: EngineFacts) -> Reasons:
    """What an engine can't give. Podman's tmpfs takes no owner (podman-run(1), `--mount`: no uid and gid)."""
    if facts.apptainer:
        return _of_apptainer(claims)
    own = [one for one in claims.claims if one.expect.get("mount") == "own"]
    return _reasons(_PODMAN_OWN, own) if facts.podman else {}


def _of_apptainer(claims: ClaimSet) -> Reasons:
    """A user's container has that user alone (Apptainer's user guide, "Security in Apptainer")."""
    sizes = [one for one in claims.only([HOST_PROBE]).claims if one.subject == "size"]
    return {
        **_reasons(_APPTAINER_USER, claims.only([*AS_ROOT, *AS_ARBITRARY_UID]).claims),
        **_reasons(_APPTAINER_MOUNTS, claims.only(IN_OWN_CONTAINER).claims),
        **_reasons(_APPTAINER_SIZE, sizes),
    }


def limited(claims: ClaimSet, reasons: Reasons) -> ClaimSet:
    """The same claims; those with a reason are unproven by it."""
    found = (replace(one, unproven=one.unproven or reasons.get(_key(one), "")) for one in claims.claims)
    return ClaimSet(image=claims.image, claims=tuple(found))


def given(claims: ClaimSet, reasons: Reasons) -> ClaimSet:
    """The claims that can be measured there."""
    return ClaimSet(image=claims.image, claims=tuple(one for one in claims.claims if _key(one) not in reasons))


def as_host(reasons: Reasons, facts: EngineFacts | None = None) -> dict[str, Any]:
    """For the `host` of evidence: what was not given there, and whose all files were if not their owners'."""
    owners = {"owners": _APPTAINER_OWNERS} if facts and facts.apptainer else {}
    return {**owners, **({_KEY: dict(reasons)} if reasons else {})}


def not_given(evidence: Evidence) -> Reasons:
    """What the place where it was measured could not give, as it says itself."""
    reasons: Reasons = evidence.host.get(_KEY) or {}
    return reasons


def of_evidence(claims: ClaimSet, evidence: Evidence) -> ClaimSet:
    """Claims as evidence from such a place can answer them. Evidence can only lose by it: unproven is never green."""
    return limited(claims, not_given(evidence))


def _reasons(reason: str, claims: Sequence[Claim]) -> dict[str, str]:
    return {_key(one): reason for one in claims}


def _key(claim: Claim) -> str:
    return f"{claim.id} {claim.subject}"
