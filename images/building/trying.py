"""Any image against a name's claims: which claims hold it, on which GPUs, and what a trial of it showed.

`validate`, `adopt` and the workers of a fleet share it, so that all of them judge alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.building import validating
from images.config.matrix import Sources
from images.context import labels as image_labels
from images.engine import ImageInfo
from images.engine.gpus import NO_GPU, Attachment
from images.engine.runtime import Runtime
from images.errors import Problem, UserError
from images.locking import lock_file
from images.locking.lock_file import Lock
from images.planning.image import Image
from images.validation import child
from images.validation.child import Changes
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims
from images.wheels import cache as wheel_cache
from images.wheels import outside
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence, Record
from validate.judge import Verdict
from validate.judging import listed


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an image is to be held to. Reads the image's lock and the wheel cache."""

    image: Image
    sources: Sources
    cache: Path
    """Where downloads are kept: wheels that are in no lock are read there."""
    tiers: Sequence[Tier] = ()
    """Empty: all that the machine can."""
    only: Sequence[str] = ()
    """Claims that hold one of these texts alone; empty: all."""

    def claims(self, found: Described, tiers: Sequence[Tier], attachment: Attachment = NO_GPU) -> ClaimSet:
        """The claims of an image with these labels and steps, on a host with these GPUs. Raises UserError."""
        locked = lock_file.read(self.image)
        context = claim_context(self.image, locked, found.labels, self.sources, self.cache)
        claims = image_claims(context.on_host(attachment))
        claims = chosen(claims, tiers, self.only) if self.only else claims
        return child.claims(claims) if found.steps_above else claims


@dataclass(frozen=True, kw_only=True)
class Described:
    """What an image's configuration says of it, wherever that was read. `history`: newest step first."""

    labels: Mapping[str, str]
    history: Sequence[str]

    @property
    def steps_above(self) -> tuple[str, ...] | None:
        """Of an image that stands on one of ours."""
        return child.steps_above(self.history)


def described(engine: Runtime, info: ImageInfo) -> Described:
    """An image of an engine."""
    return Described(labels=info.labels, history=[step.created_by for step in engine.history(info.id)])


def claim_context(image: Image, lock: Lock, labels: Mapping[str, str], sources: Sources, cache: Path) -> ClaimContext:
    """With what the labels of an image say of its base, and of what it goes without."""
    missing, custom_base = image_labels.declared_missing(image, labels), image_labels.on_custom_base(labels)
    found = outside.kept(image, missing, wheel_cache.wheel_finder(sources.matrix, wheel_cache.default()), cache)
    return ClaimContext.of(image, lock, sources.facts, missing=missing, custom_base=custom_base, outside=found)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """An image that is there, and what a trial of it showed."""

    info: ImageInfo
    tiers: Sequence[Tier]
    evidence: Evidence
    verdict: Verdict
    changes: Changes | None = None
    """Of an image that stands on the one whose claims it was held to."""


@dataclass(frozen=True, kw_only=True)
class Telling:
    """Who is told what, while a trial goes on."""

    say: Callable[[str], None] = lambda _text: None
    on_record: Callable[[Record], None] = lambda _record: None
    on_evidence: Callable[[Evidence], None] = lambda _evidence: None


def tried(engine: Runtime, reference: str, wanted: Wanted, gpus: str, telling: Telling | None = None) -> Tried:
    """Judge any image against a name's claims. Raises UserError.

    A child of that name's image is held to them as a child is (images/validation/child.py).
    """
    tell = telling or Telling()
    lock_file.read(wanted.image)
    info = engine.inspect(reference)
    validating.require_platform(engine, wanted.image, tell.say)
    attachment, tiers = validating.find_gpus(engine, wanted.image, gpus, wanted.tiers)
    tell.say(str(attachment))
    found = described(engine, info)
    claims = wanted.claims(found, tiers, attachment)
    tell.say(f"trying {reference} ({info.id[:19]})")
    evidence, verdict = validating.validate_image(
        engine, info.id, claims, tiers, attachment, tell.on_record, tell.on_evidence
    )
    above = found.steps_above
    changes = child.changes(evidence, above) if above else None
    return Tried(info=info, tiers=tiers, evidence=evidence, verdict=verdict, changes=changes)


def chosen(claims: ClaimSet, tiers: Sequence[Tier], texts: Sequence[str]) -> ClaimSet:
    """The claims of these tiers whose `ID SUBJECT` holds one of the texts. Raises UserError for a text in none."""
    there = claims.of(tiers)
    problems = [
        Problem(
            where=f"--claim {text!r}",
            cause=f"is in no claim of {claims.image} in {', '.join(tiers)}",
            then=f"say a part of `ID SUBJECT`, as reports show it: {listed(_keys(there), limit=6)}",
        )
        for text in texts
        if not there.about([text]).claims
    ]
    if problems:
        raise UserError(problems)
    return there.about(texts)


def _keys(claims: ClaimSet) -> list[str]:
    """The claims that take longest first: those of the last tiers."""
    return [f"{claim.id} {claim.subject}" for claim in reversed(claims.claims)]
