"""What verbs that are no plain functions yet share: an image's claims, and options of validation runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from images.building import validating
from images.building.validating import Described
from images.commands.engines import open_engine as open_engine
from images.commands.engines import open_runtime as open_runtime
from images.commands.options import Gpus, Tiers
from images.config import paths
from images.config.matrix import Sources
from images.context import base_images
from images.context import labels as image_labels
from images.engine import gpus as gpu_access
from images.locking import lock_file
from images.planning import plan
from images.planning.image import Image
from validate.claims import ClaimSet, Tier


@dataclass(frozen=True, kw_only=True)
class TrialArguments:
    """What a validation run measures, and on which GPUs."""

    tier: Tiers = None
    gpus: Gpus = gpu_access.AUTO

    @property
    def tiers(self) -> Sequence[Tier]:
        """Empty: all that this machine can."""
        return self.tier or ()


def claims_of(image: Image, labels: Mapping[str, str], sources: Sources) -> ClaimSet:
    """The claims that today's matrix writes for an image with these labels."""
    return validating.claims_of(image, sources, Described(labels=labels, history=()), ())


def claims_of_published(labels: Mapping[str, str], sources: Sources) -> ClaimSet | None:
    """The same of a published image; None where the matrix makes another image of its name, or has no lock of it.

    An alias or a new row gives the whole matrix another revision, and changes nothing of this image.
    """
    name, revision = (labels.get(f"{image_labels.LABELS}.{key}", "") for key in ("image", "matrix-revision"))
    image = next((one.image for one in plan.plan(sources) if one.name == name), None)
    if image is None or (revision != image.revision and not image_labels.describe(labels, image)):
        return None
    if lock_file.state(image, sources.workspace.locks).status is not lock_file.Status.PRESENT:
        return None
    return claims_of(image, labels, sources)


def pinned_bases() -> dict[str, str]:
    return dict(base_images.pinned(paths.workspace().root))
