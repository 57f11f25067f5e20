"""Makes the claims that an image is held to, from its plan, its lock and the host's GPUs.

Nothing here reads a file, starts a container or reaches a network.
"""

from dataclasses import replace

from images.validation.claims.context import ClaimContext
from images.validation.claims.cpu import cpu_claims
from images.validation.claims.gpu import gpu_claims
from images.validation.claims.multigpu import multigpu_claims
from images.validation.claims.multinode import multinode_claims
from images.validation.claims.origin import origin_claims
from images.validation.claims.static import static_claims
from validate.claims import Claim, ClaimSet


def image_claims(context: ClaimContext) -> ClaimSet:
    """Return every claim of an image, in the order that reports show.

    A claim is a statement about the image that a check tests. `context` has what they are written
    from: the planned image, its lock, and the host's GPUs.
    """
    claims = [
        *static_claims(context),
        *cpu_claims(context),
        *gpu_claims(context),
        *multigpu_claims(context),
        *multinode_claims(context),
    ]
    if context.image.name.profile:
        # Imported here, because most images have no profile.
        from images.validation.claims.profile import profile_claims

        claims += profile_claims(context)
    claims = [with_known_gap(claim, context) for claim in claims]

    # There are such claims only if the context has an origin. For the copy of the claims that an
    # image carries, it has none: the record of layers may change later, and the image can't.
    claims += origin_claims(context)
    return ClaimSet(image=str(context.image.name), claims=tuple(claims))


def with_known_gap(claim: Claim, context: ClaimContext) -> Claim:
    """Return a claim as unproven and not required if it is known beforehand that it can't hold.

    That is so if the image's pins put it out of reach (`unproven` in expectations.yaml), or if it
    is about an optional package that the image lacks. Other claims are returned as they are.
    """
    # The subject of a claim about a package is the package's name.
    if claim.subject in context.missing:
        reason = (
            f"{claim.subject} is not in this image: {context.missing[claim.subject]}. Unless you "
            "use it, nothing needs to be done"
        )
        return replace(claim, required=False, unproven=reason)

    # Keys are claims (`imports/unsloth`) or whole checks (`resume`).
    reasons = context.image.unproven
    if claim.key in reasons:
        return replace(claim, required=False, unproven=reasons[claim.key])
    if claim.check in reasons:
        return replace(claim, required=False, unproven=reasons[claim.check])
    return claim
