"""What an image is held to, written from the resolved image and the suite alone. Pure: no container, no network."""

from collections.abc import Sequence
from dataclasses import replace

from images.host.hashing import sha256
from images.validation.claims.context import ClaimContext
from images.validation.claims.cpu import cpu_claims
from images.validation.claims.gpu import gpu_claims
from images.validation.claims.multigpu import multigpu_claims
from images.validation.claims.origin import origin_claims
from images.validation.claims.static import static_claims
from images.validation.containers import suite_files
from validate.checks.static import hygiene
from validate.claims import Claim, ClaimSet, Tier


def image_claims(context: ClaimContext) -> ClaimSet:
    """Return every claim of an image, in the order that reports show."""
    written = [*static_claims(context), *cpu_claims(context), *gpu_claims(context), *multigpu_claims(context)]
    if context.image.name.profile:
        from images.validation.claims.profile import profile_claims

        written += profile_claims(context)
    claims = [with_known_gap(claim, context) for claim in written]
    return ClaimSet(image=str(context.image.name), claims=(*claims, own_copy_claim(claims), *origin_claims(context)))


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


def own_copy_claim(claims: Sequence[Claim]) -> Claim:
    """Return the claim that the image's own copy of suite, examples and these claims is this checkout's.

    It is not required: no verdict of ours comes from that copy.
    """
    files = suite_files(ClaimSet(image="", claims=tuple(claims)))
    sums = {path: sha256(content) for path, content in files.items() if path != "claims.json"}
    expect = {
        "leftovers": {},
        "suite": hygiene.digest_of_suite(sums),
        "claims": hygiene.of_claims(files["claims.json"]),
    }
    statement = "the image's own copy of the suite and its examples is this checkout's"
    return Claim(
        check="hygiene",
        subject="suite",
        tier=Tier.STATIC,
        probe="static.hygiene",
        statement=statement,
        expect=expect,
        required=False,
    )
