"""What an image is held to, written from the resolved image alone. Pure: no container, no file, no network."""

from __future__ import annotations

from dataclasses import replace

from images.validation.claims.context import ClaimContext
from images.validation.claims.cpu import cpu_claims
from images.validation.claims.gpu import gpu_claims, multigpu_claims
from images.validation.claims.static import static_claims
from validate.claims import ClaimSet


def image_claims(context: ClaimContext) -> ClaimSet:
    """Every claim of an image, in the order that reports show.

    What pins put out of reach or are known to break (`unproven` in expectations.yaml), and what is about an optional
    wheel that could not be had, is said with the reason, and not held against the image.
    """
    image, missing = context.image, context.missing
    claims = [*static_claims(context), *cpu_claims(context), *gpu_claims(context), *multigpu_claims(context)]
    if image.profile:
        from images.validation.claims.profile import profile_claims

        claims += profile_claims(context)
    found = []
    for claim in claims:
        reason = image.unproven.get(f"{claim.id} {claim.subject}", image.unproven.get(claim.id, ""))
        if claim.subject in missing:
            reason = f"{claim.subject} is not in this image: {missing[claim.subject]}"
        found.append(replace(claim, required=False, unproven=reason) if reason else claim)
    return ClaimSet(image=str(image.name), claims=tuple(found))
