"""Any image against a name's claims: which claims hold it, by what it says of itself and what stands above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from images.building import validating
from images.config.matrix import Sources
from images.context import labels as image_labels
from images.engine import Engine, ImageInfo, configuration
from images.engine.gpus import Attachment
from images.errors import Problem, UserError
from images.host import cache
from images.locking import lock_file
from images.planning.image import Image
from images.validation import child, own_python, run
from images.validation.child import Changes
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from images.wheels import prebuilt
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import Verdict
from validate.judging import listed

_DPKG = "/var/lib/dpkg/status"


@dataclass(frozen=True, kw_only=True)
class Described:
    """What an image's configuration says of it, wherever that was read. `history`: newest step first."""

    labels: Mapping[str, str]
    history: Sequence[str]

    @property
    def steps_above(self) -> tuple[str, ...] | None:
        """For an image that stands on one of ours: its own steps."""
        return configuration.steps_above(self.history)


def described(engine: Engine, info: ImageInfo, name: str) -> Described:
    """An image of an engine. Where it stands on what the engine calls `name`, that one says what its claims go without:
    a custom base, or a wheel."""
    parent = run.find_parent(engine, name, info) or info
    return Described(labels=parent.labels, history=run.history(engine, name, info))


def claims_of(
    image: Image,
    sources: Sources,
    found: Described,
    tiers: Sequence[Tier],
    *,
    only: Sequence[str] = (),
    attachment: Attachment | None = None,
) -> ClaimSet:
    """The claims that an image with these labels and steps is held to. Reads the image's lock and the wheel cache.

    `only`: claims that hold one of these texts; empty: all. `attachment`: the GPUs of a host; None: of no host.
    Raises UserError: no lock, a text that is in no claim.
    """
    lock = lock_file.read(image, sources.workspace.locks)
    missing = image_labels.declared_missing(image, found.labels)
    compiled = prebuilt.wheel_finder(sources.matrix)
    context = ClaimContext.of(
        image,
        lock,
        sources.facts,
        missing=missing,
        custom_base=image_labels.on_custom_base(found.labels),
        outside=prebuilt.kept(image, missing, compiled, cache.folder()),
    )
    claims = image_claims(context.on_host(attachment, tiers) if attachment else context)
    if found.steps_above:
        dead = {name: f"it is no longer maintained: take {row.by}" for name, row in sources.facts.replaced.items()}
        instead = "remove it (`pip uninstall {}`), or take an image of a torch that it is made for (`plan` lists them)"
        unfit = {name: f"{why}: {instead.format(name)}" for name, why in image.unfit.items()}
        claims = child.claims(claims, {**dead, **unfit}, name=image.local_name, nvcc=image.devel)
    return chosen(claims, tiers, only) if only else claims


def chosen(claims: ClaimSet, tiers: Sequence[Tier], texts: Sequence[str]) -> ClaimSet:
    """The claims of these tiers whose `ID SUBJECT` holds one of the texts. Raises UserError for a text in none."""
    there = claims.of(tiers)
    # Those that take longest first: of the last tiers.
    keys = [f"{claim.id} {claim.subject}" for claim in reversed(there.claims)]
    problems = [
        Problem(
            where=f"--claim {text!r}",
            cause=f"is in no claim of {claims.image} in {', '.join(tiers)}",
            then=f"say a part of `ID SUBJECT`, as reports show it: {listed(keys, limit=6)}",
        )
        for text in texts
        if not there.about([text]).claims
    ]
    if problems:
        raise UserError(problems)
    return there.about(texts)


def validate_image(
    engine: Engine,
    image: Image,
    reference: str,
    sources: Sources,
    *,
    tiers: Sequence[Tier] = (),
    gpus: str,
    only: Sequence[str] = (),
    say: Callable[[str], None],
    **options: Any,
) -> tuple[Sequence[Tier], Evidence, Verdict, Changes | None]:
    """Hold any image to a name's claims. `tiers`: none means all that the machine can. `options`: of run.measure.

    A child of that name's image is held to them as a child is (images/validation/child.py), and has changes. Raises
    UserError.
    """
    lock_file.read(image, sources.workspace.locks)  # before anything is asked of the engine
    info = engine.inspect(reference)
    attachment, tiers = validating.find_gpus(engine, image, gpus, tiers, say)
    say(str(attachment))
    found = described(engine, info, image.local_name)
    claims = claims_of(image, sources, found, tiers, only=only, attachment=attachment)
    say(f"measuring {reference} ({info.id[:19]})")
    evidence, verdict = validating.measure_and_judge(
        engine,
        info.id,
        claims,
        tiers,
        attachment,
        on_record=lambda one: say(f"measured {one.probe} in {one.seconds:.1f} s ({one.outcome})"),
        **options,
    )
    changes = None
    if found.steps_above:
        parent = run.find_parent(engine, image.local_name, info)
        debian = (debian_packages(engine, parent), debian_packages(engine, info)) if parent else None
        changes = child.changes(evidence, found.steps_above, info.env, debian)
    return tiers, evidence, verdict, changes


def debian_packages(engine: Engine, info: ImageInfo | None) -> dict[str, str]:
    """Debian package -> version that an image has installed, of which nothing is run; none of no image."""
    return child.debian_packages(own_python.read_file(engine, info, _DPKG, most=1 << 24)) if info else {}
