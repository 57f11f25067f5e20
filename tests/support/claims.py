"""Claims of an image of the real matrix."""

from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support.sources import SOURCES, image
from validate.claims import ClaimSet


def bare_claims(name: str) -> ClaimSet:
    """Return an image's claims without those that need its lock or the host."""
    return image_claims(ClaimContext(image=image(name), facts=SOURCES.facts))
