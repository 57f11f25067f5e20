"""What an image carries for its users: the suite and its own claims, for the commands `validate` and `doctor` in it."""

from __future__ import annotations

from collections.abc import Mapping

from images.config.facts import Facts
from images.planning.image import Image
from images.validation import trial
from images.validation.claims import base as base_claims


def suite(
    image: Image, lock_pins: Mapping[str, Mapping[str, str]] | None, missing: Mapping[str, str], *, facts: Facts
) -> Mapping[str, bytes]:
    """The files below /opt/truetag. The claims know no host: there, the image's own driver is believed."""
    return trial.suite_files(base_claims.promises(image, lock_pins, missing, facts=facts))
