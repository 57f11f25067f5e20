"""What an image is held to, written from the resolved image and the suite alone. Pure: no container, no network."""

from dataclasses import replace

from images.host.hashing import sha256
from images.validation.claims.context import ClaimContext, claim
from images.validation.claims.cpu import cpu_claims
from images.validation.claims.gpu import gpu_claims
from images.validation.claims.multigpu import multigpu_claims
from images.validation.claims.origin import origin_claims
from images.validation.claims.static import static_claims
from images.validation.containers import suite_files
from validate.checks.static import hygiene
from validate.claims import ClaimSet


def image_claims(context: ClaimContext) -> ClaimSet:
    """Every claim of an image, in the order that reports show.

    What pins put out of reach or are known to break (`unproven` in expectations.yaml), and what is about an optional
    wheel that could not be had, is said with the reason, and not held against the image.
    """
    image, missing = context.image, context.missing
    claims = [*static_claims(context), *cpu_claims(context), *gpu_claims(context), *multigpu_claims(context)]
    if image.name.profile:
        from images.validation.claims.profile import profile_claims

        claims += profile_claims(context)
    found = []
    for one in claims:
        reason = image.unproven.get(one.key, image.unproven.get(one.check, ""))
        if one.subject in missing:
            reason = f"{one.subject} is not in this image: {missing[one.subject]}"
        found.append(replace(one, required=False, unproven=reason) if reason else one)
    # `image`. No verdict of ours comes from the image's own copy: that of another checkout is told, and no fault.
    files = suite_files(ClaimSet(image="", claims=tuple(found)))
    sums = {path: sha256(content) for path, content in files.items() if path != "claims.json"}
    statement = "the image's own copy of the suite and its examples is this checkout's"
    held = hygiene.of_claims(files["claims.json"])
    expect = {"leftovers": {}, "suite": hygiene.digest_of_suite(sums), "claims": held}
    suite = claim("hygiene", "suite", "static.hygiene", statement, expect, required=False)
    # The image's own copy of its claims has none about layers: what is recorded of them moves on, and the image stays.
    return ClaimSet(image=str(image.name), claims=(*found, suite, *origin_claims(context)))
