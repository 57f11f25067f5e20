"""What an image carries for its users: the suite and its own claims, for the commands `validate` and `doctor` in it."""

from __future__ import annotations

from collections.abc import Mapping

from images import promises, trial
from images.facts import Facts
from images.image import Image
from validate.claims import ClaimSet

_MEASURED_ELSEWHERE = frozenset({"host.image", "static.hygiene", "cpu.stranger"})
"""Probes that need the host, root, or a uid that the image does not know: a build runs them, a user can't."""


def suite(
    image: Image, lock_pins: Mapping[str, Mapping[str, str]] | None, missing: Mapping[str, str], *, facts: Facts
) -> Mapping[str, bytes]:
    """The files below /opt/truetag. The claims know no host: there, the image's own driver is believed."""
    promised = promises.promises(image, lock_pins, missing, facts=facts)
    kept = tuple(claim for claim in promised.claims if claim.probe not in _MEASURED_ELSEWHERE)
    return trial.suite_files(ClaimSet(image=promised.image, claims=kept))
