"""What an image is held to, written from the resolved image and the suite alone. Pure: no container, no network."""

from dataclasses import replace

from images.validation.claims.context import ClaimContext
from images.validation.claims.cpu import cpu_claims
from images.validation.claims.gpu import gpu_claims
from images.validation.claims.multigpu import multigpu_claims
from images.validation.claims.origin import origin_claims
from images.validation.claims.static import static_claims
from validate.claims import Claim, ClaimSet


def image_claims(context: ClaimContext) -> ClaimSet:
    """Return every claim of an image, in the order that reports show."""
    written = [
        *static_claims(context),
        *cpu_claims(context),
        *gpu_claims(context),
        *multigpu_claims(context),
    ]
    if context.image.name.profile:
        from images.validation.claims.profile import profile_claims

        written += profile_claims(context)
    claims = [with_known_gap(claim, context) for claim in written]
    # The image's own copy of its claims has none about layers: what is recorded of them moves on, and the image stays.
    return ClaimSet(image=str(context.image.name), claims=(*claims, *origin_claims(context)))


def with_known_gap(claim: Claim, context: ClaimContext) -> Claim:
    """Return a claim, which is not required if it is known beforehand why it can't be proved.

    Pins may put it out of reach or be known to break it (`unproven` in expectations.yaml), or it is about an optional
    wheel that could not be had.
    """
    reasons = context.image.unproven
    reason = reasons.get(claim.key, reasons.get(claim.check, ""))
    if claim.subject in context.missing:
        reason = f"{claim.subject} is not in this image: {context.missing[claim.subject]}"
    return replace(claim, required=False, unproven=reason) if reason else claim
