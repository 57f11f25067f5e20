"""What an image carries for its users: the suite and its own claims, for the commands `validate` and `doctor` in it."""

from __future__ import annotations

from collections.abc import Mapping

from images.validation import trial
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims


def suite(context: ClaimContext) -> Mapping[str, bytes]:
    """The files below /opt/truetag. `context` has no host: there, the image's own driver is believed."""
    return trial.suite_files(image_claims(context))
