"""What tests of broken images share: how a fault is told, laid on the real parent, and judged."""

from dataclasses import dataclass

from images.building import validating
from images.config import matrix
from images.engine import Engine
from validate.claims import ClaimSet, Tier
from validate.judge import Verdict

NAME = "cu126-torch27"
SOURCES = matrix.load()


@dataclass(frozen=True)
class Fault:
    """A thin layer that breaks the parent, and who must notice."""

    name: str
    layer: str
    claim: str
    subject: str
    culprit: str
    """What the reason must name."""
    last: str = ""
    """Instructions after the user is set back."""


SITE = "/opt/venv/lib/python3.11/site-packages"
INSTALL = (
    "RUN --mount=type=bind,source=host,target=/run/host . /run/host/env && unset PIP_CONSTRAINT PIP_BUILD_CONSTRAINT "
    "&& pip install -q --no-deps --no-cache-dir"
)


def judged(engine: Engine, reference: str, claims: ClaimSet, *ids: str, subject: str = "") -> Verdict:
    """Judge the claims of these catalogue numbers (all, if none is named), and of this subject if one is."""
    chosen = tuple(
        claim for claim in claims.claims if (not ids or claim.id in ids) and (not subject or claim.subject == subject)
    )
    assert chosen, "a check that looks at nothing finds nothing"
    return validating.validate_image(
        engine, reference, ClaimSet(image=claims.image, claims=chosen), (Tier.STATIC, Tier.CPU)
    )[1]
