"""What an image is held to, written from the resolved image alone. Pure: no container, no file, no network."""

from __future__ import annotations

from dataclasses import replace

from images.planning.image import Image
from images.validation.claims.context import ClaimContext
from images.validation.claims.cpu import cpu_claims
from images.validation.claims.gpu import gpu_claims
from images.validation.claims.multigpu import multigpu_claims
from images.validation.claims.profile import profile_claims
from images.validation.claims.static import static_claims
from validate.claims import Claim, ClaimSet


def image_claims(context: ClaimContext) -> ClaimSet:
    """Every claim of an image, in the order that reports show."""
    claims = [
        *static_claims(context),
        *cpu_claims(context),
        *gpu_claims(context),
        *multigpu_claims(context),
        *profile_claims(context),
    ]
    reachable = (_out_of_reach(claim, context.image) for claim in claims)
    return ClaimSet(image=str(context.image.name), claims=tuple(_of_missing(claim, context) for claim in reachable))


def _out_of_reach(claim: Claim, image: Image) -> Claim:
    """A claim that the profile's own pins put out of reach: said, with the reason, and not held against the image."""
    reason = image.unproven.get(f"{claim.id} {claim.subject}", image.unproven.get(claim.id, ""))
    return replace(claim, required=False, unproven=reason) if reason else claim


def _of_missing(claim: Claim, context: ClaimContext) -> Claim:
    """A claim about an optional wheel that could not be had."""
    if claim.subject not in context.missing:
        return claim
    reason = f"{claim.subject} is not in this image: {context.missing[claim.subject]}"
    return replace(claim, required=False, unproven=reason)
