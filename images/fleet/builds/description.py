"""What a build job says of its image, and what that means in a checkout: the submitter's and the worker's alike. Pure,
but for the files of the checkout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from images.building import contexts
from images.config.matrix import Sources
from images.config.names import ImageName
from images.context import base_images, render
from images.context.render import Extras
from images.errors import Problem, UserError
from images.fleet.builds.model import BuildJob
from images.host.hashing import sha256
from images.nightly.canary import Locked
from images.planning import plan
from images.planning.image import Image
from images.validation import embedded
from images.validation.claims.context import ClaimContext


def image_of(job: BuildJob, sources: Sources) -> Image:
    """The image of a job, at the job's versions. Raises UserError: this checkout refuses it."""
    planned = plan.plan_one(ImageName.parse(job.image), sources)
    if planned.image is None:
        cause = f"is refused on this worker: {'; '.join(planned.reasons)}"
        raise UserError(Problem(where=job.image, cause=cause, then=_SAME_CHECKOUT), code=1)
    pins = tuple(replace(pin, version=job.pins.get(pin.name, pin.version)) for pin in planned.image.pins)
    return replace(planned.image, pins=pins)


def moved_pins(before: Image, after: Image) -> dict[str, str]:
    """Distribution -> version, of the pins that differ."""
    known = {pin.name: pin.version for pin in before.pins}
    return {pin.name: pin.version for pin in after.pins if known.get(pin.name) != pin.version}


def context_digest(locked: Locked, sources: Sources, bases: Mapping[str, str]) -> str:
    """sha256 of the build context without wheels that no index has and without settings of a machine.

    Dockerfile, steps, lock, suite and claims are in it.
    """
    claimed = ClaimContext.of(locked.image, locked.lock, sources.facts, missing={}, custom_base=False)
    base = contexts.base_context(locked.image.base, base_images.AUTO, bases)
    files = render.render(locked.image, locked.lock.files, base, Extras(suite=embedded.suite(claimed)))
    return sha256(json.dumps(contexts.digests(files), sort_keys=True).encode())


def require_same_context(job: BuildJob, found: str) -> None:
    """Raises UserError where a checkout gives another context than the job's."""
    if found != job.context:
        cause = f"its build context is {found[:12]} in the worker's checkout, and {job.context[:12]} was asked for"
        raise UserError(Problem(where=job.image, cause=cause, then=_SAME_CHECKOUT), code=1)


_SAME_CHECKOUT = "leave the checkout as it is until the jobs have ended, or begin anew: the worker needs the same one"
