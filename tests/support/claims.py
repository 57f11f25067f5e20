"""Claims of an image of the real matrix."""

from __future__ import annotations

from images.planning import plan
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims
from tests.support.sources import SOURCES
from validate.claims import ClaimSet


def bare_claims(name: str) -> ClaimSet:
    """Without lock and host."""
    (planned,) = plan.select([name], SOURCES)
    if planned.image is None:
        raise ValueError(name)
    return image_claims(ClaimContext(image=planned.image, facts=SOURCES.facts))
