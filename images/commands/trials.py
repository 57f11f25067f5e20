"""What verbs share that need an engine or an image's claims: open the one, write the others, and judge by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from images.building import validating
from images.commands import common
from images.commands.common import say, talk
from images.commands.options import Tiers
from images.config import paths
from images.config.matrix import Sources
from images.context import base_images
from images.context import labels as image_labels
from images.engine import Engine, ImageInfo, connect, private_engine
from images.engine import gpus as gpu_access
from images.errors import Problem, UserError
from images.locking import lock_file
from images.locking.lock_file import Lock
from images.planning import plan
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

Gpus = Annotated[
    str, typer.Option("--gpus", metavar=gpu_access.HELP, help="How the trial's container gets the host's GPUs.")
]


@dataclass(frozen=True, kw_only=True)
class TrialArguments:
    """What a trial measures, and on which GPUs."""

    tier: Tiers = None
    gpus: Gpus = gpu_access.AUTO

    @property
    def tiers(self) -> Sequence[Tier]:
        """Empty: all that this machine can."""
        return self.tier or ()


def claims_of(image: Image, labels: Mapping[str, str], sources: Sources) -> ClaimSet:
    """The claims that today's matrix writes for an image with these labels."""
    return image_claims(_claim_context(image, lock_file.read(image), labels, sources))


def _claim_context(image: Image, lock: Lock, labels: Mapping[str, str], sources: Sources) -> ClaimContext:
    """With what the labels of an image say of its base, and of what it goes without."""
    missing, custom_base = image_labels.declared_missing(image, labels), image_labels.on_custom_base(labels)
    found = outside.kept(
        image, missing, wheel_cache.wheel_finder(sources.matrix, wheel_cache.default()), common.cache()
    )
    return ClaimContext.of(image, lock, sources.facts, missing=missing, custom_base=custom_base, outside=found)


def claims_of_published(labels: Mapping[str, str], sources: Sources) -> ClaimSet | None:
    """The same of a published image; None where it was built from another matrix."""
    name, revision = (labels.get(f"{image_labels.LABELS}.{key}", "") for key in ("image", "matrix-revision"))
    planned = next((one for one in plan.plan(sources) if one.name == name), None)
    if planned is None or planned.image is None or revision != planned.image.revision:
        return None
    return claims_of(planned.image, labels, sources)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """An image that is there, and what a trial of it showed."""

    info: ImageInfo
    tiers: Sequence[Tier]
    evidence: Evidence
    verdict: Verdict
    changes: Changes | None = None
    """Of an image that stands on the one whose claims it was held to."""


def tried(
    engine: Engine,
    image: Image,
    reference: str,
    sources: Sources,
    how: TrialArguments,
    *,
    only: Sequence[str] = (),
    on_evidence: Callable[[Evidence], None] = lambda _evidence: None,
) -> Tried:
    """Judge any image against a name's claims, or `only` those that hold one of these texts. Raises UserError.

    A child of that name's image is held to them as a child is (images/validation/child.py).
    """
    locked = lock_file.read(image)
    info = engine.inspect(reference)
    validating.require_platform(engine, image, say)
    attachment, judged = validating.find_gpus(engine, image, how.gpus, how.tiers)
    talk.print(str(attachment), style="dim", highlight=False)
    claims = image_claims(_claim_context(image, locked, info.labels, sources).on_host(attachment))
    claims = chosen(claims, judged, only) if only else claims
    above = child.steps_above([step.created_by for step in engine.history(info.id)])
    claims = child.claims(claims) if above else claims
    talk.print(f"trying {reference} ({info.id[:19]})", style="dim")
    evidence, verdict = validating.validate_image(engine, info.id, claims, judged, attachment, _told, on_evidence)
    changes = child.changes(evidence, above) if above else None
    return Tried(info=info, tiers=judged, evidence=evidence, verdict=verdict, changes=changes)


def _told(record: Record) -> None:
    talk.print(f"measured {record.probe} in {record.seconds:.1f} s ({record.outcome})", style="dim", highlight=False)


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


def open_engine(url: str | None, *, install: bool = True) -> Engine:
    """The engine to work with, rid of the containers and volumes that killed commands of this machine left there."""
    engine = private_engine.open_engine(url, say=say) if install else connect(url)
    if left := engine.sweep():
        say(f"removed what killed commands left behind: {', '.join(left)}")
    return engine


def pinned_bases() -> dict[str, str]:
    file = paths.workspace().root / base_images.PINS_FILE
    return dict(base_images.load_pins(file.read_text(encoding="utf-8", errors="replace"))) if file.is_file() else {}
