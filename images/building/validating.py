"""An image against claims: which claims hold it, on which GPUs it is measured, and the verdict.

`build`, `validate` and the workers of a fleet share it, so that all of them judge alike. Which claims hold an image
follows from its labels, and from the build steps above those of our Dockerfile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

from images.config.matrix import Sources
from images.context import labels as image_labels
from images.context import origin
from images.engine import Engine, configuration, host_gpus
from images.engine.gpus import NO_GPU, Attachment
from images.errors import Problem, UserError
from images.hardware.inventory import GpuMode
from images.host import cache
from images.locking import lock_file
from images.planning.image import Image
from images.validation import child, validation_run
from images.validation.child import Changes
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from images.wheels import prebuilt
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence, Record
from validate.judge import Verdict, explain, judge

ANYWHERE = (Tier.STATIC, Tier.CPU)
"""The tiers that every machine can judge: no image is named without them."""
_MOST_NEAR = 6  # names that a message proposes in place of an unknown one


def measure_and_judge(
    engine: Engine,
    reference: str,
    claims: ClaimSet,
    tiers: Sequence[Tier],
    gpus: Attachment = NO_GPU,
    *,
    run_anyway: bool = False,
    on_record: Callable[[Record], None] = lambda _record: None,
) -> tuple[Evidence, Verdict]:
    """Measure an image in containers, judge it, and explain what is known.

    `run_anyway`, `on_record`: as images/validation/validation_run.py has them. Raises UserError.
    """
    evidence = validation_run.validate(
        engine, reference, claims, tiers, gpus, run_anyway=run_anyway, on_record=on_record
    )
    return evidence, explain(judge(evidence.claim_set, evidence))


def find_gpus(
    engine: Engine, image: Image, wanted: GpuMode, tiers: Sequence[Tier], say: Callable[[str], None]
) -> tuple[Attachment, Sequence[Tier]]:
    """Return how containers get GPUs, and the tiers to judge: if none is asked for, those that this host allows.

    Raises UserError: a way that can't be had, a driver below the image's minimum.
    """
    platform = image.name.platform
    if platform.architecture != engine.facts.architecture:
        reason = f"programs for {platform} do not run on this machine ({engine.facts.architecture})"
        say(f"{reason}: claims that need them stay UNPROVEN, and it gets no name here")
        return replace(NO_GPU, reason=reason), tiers or ANYWHERE
    if tiers and Tier.GPU not in tiers and Tier.MULTIGPU not in tiers:
        return NO_GPU, tiers

    attachment = host_gpus.attach(engine, wanted, min_driver=image.min_driver)
    if tiers:
        return attachment, tiers
    if not attachment.attached:
        return attachment, ANYWHERE
    if attachment.inventory is None or len(attachment.inventory.gpus) < 2:
        return attachment, (*ANYWHERE, Tier.GPU)
    return attachment, tuple(Tier)


def claims_of(
    image: Image,
    sources: Sources,
    labels: Mapping[str, str],
    steps: Sequence[str],
    tiers: Sequence[Tier],
    *,
    only: Sequence[str] = (),
    attachment: Attachment | None = None,
) -> ClaimSet:
    """Return the claims that hold an image with these labels and steps. Reads the image's lock and the wheel cache.

    `labels` say which optional wheels it goes without, and whether it stands on a custom base. `steps`: all of its
    build steps, the first first; any above ours make it a derived image (validation/child.py).
    `only`: claims that hold one of these texts; empty: all. `attachment`: the GPUs of a host; None: of no host.
    Raises UserError: no lock, a text that is in no claim.
    """
    lock = lock_file.read(image, sources.workspace.locks)
    missing = image_labels.declared_missing(image, labels)
    wheels = prebuilt.expected_wheels(
        image, missing, prebuilt.wheel_finder(sources.matrix), cache.folder()
    )
    context = ClaimContext.from_lock(
        image,
        lock,
        sources.facts,
        missing=missing,
        custom_base=image_labels.on_custom_base(labels),
        outside=prebuilt.record_digests(image, [path for path in wheels if path.is_file()]),
        origin=origin.of_labels(
            image,
            lock,
            labels,
            sources.workspace.locks,
            wheels={path.name: digest for path, digest in wheels.items()},
            missing=missing,
        ),
    )
    claims = image_claims(context.on_host(attachment, tiers) if attachment else context)
    if configuration.steps_above(steps):
        claims = child.claims(
            claims,
            _to_replace(image, sources),
            failing=sources.facts.failing_additions,
            conflicts=sources.facts.conflicts,
            nvcc=image.name.devel,
        )
    return chosen(claims, tiers, only) if only else claims


def _to_replace(image: Image, sources: Sources) -> dict[str, str]:
    """Return the packages that a derived image must not bring, each with what to do instead."""
    reasons = {
        name: f"it is no longer maintained: take {row.by}"
        for name, row in sources.facts.replaced.items()
    }
    for name, why in image.unfit.items():
        remedy = (
            f"remove it (`pip uninstall {name}`), or take an image of a torch that it is made for"
        )
        reasons[name] = f"{why}: {remedy} (`plan` lists them)"
    return reasons


def chosen(claims: ClaimSet, tiers: Sequence[Tier], texts: Sequence[str]) -> ClaimSet:
    """Return the claims of these tiers that the texts name. Raises UserError for a text that names none."""
    in_tiers = claims.in_tiers(tiers)
    problems = []
    for text in texts:
        if not in_tiers.named_by([text]).claims:
            cause = f"names no claim of {claims.image} in {', '.join(tiers)}"
            then = f"name a claim, or all of a check: {', '.join(_near(text, in_tiers))}"
            problems.append(Problem(where=f"--claim {text!r}", cause=cause, then=then))
    if problems:
        raise UserError(problems)
    return in_tiers.named_by(texts)


def _near(text: str, claims: ClaimSet) -> list[str]:
    """Return the names of claims and checks that are nearest to a text; the checks if none is near."""
    checks = list(dict.fromkeys(claim.check for claim in claims.claims))
    names = [claim.key for claim in claims.claims]
    containing = [name for name in names if text in name]
    near = get_close_matches(text, [*checks, *names], n=_MOST_NEAR, cutoff=0.5)
    return list(dict.fromkeys([*near, *containing]))[:_MOST_NEAR] or checks


class Validated(NamedTuple):
    """An image that was held to a name's claims."""

    tiers: Sequence[Tier]
    """What was measured."""
    evidence: Evidence
    verdict: Verdict
    changes: Changes | None
    """Of a derived image: what it has beside the image below. None: it is no derived one, or was not compared."""


def validate_image(
    engine: Engine,
    image: Image,
    reference: str,
    sources: Sources,
    *,
    tiers: Sequence[Tier] = (),
    gpus: GpuMode,
    only: Sequence[str] = (),
    run_anyway: bool = False,
    say: Callable[[str], None],
) -> Validated:
    """Hold any image to a name's claims. `tiers`: none means all that the machine can.

    A derived image is held to them as such (images/validation/child.py). Raises UserError.
    """
    # A lock that is missing or stale is reported before anything is asked of the engine.
    lock_file.read(image, sources.workspace.locks)
    info = engine.inspect(reference)
    attachment, tiers = find_gpus(engine, image, gpus, tiers, say)
    say(str(attachment))

    steps = engine.steps(info.id)
    claims = claims_of(image, sources, info.labels, steps, tiers, only=only, attachment=attachment)
    say(f"measuring {reference} ({info.id[:19]})")
    evidence, verdict = measure_and_judge(
        engine,
        info.id,
        claims,
        tiers,
        attachment,
        run_anyway=run_anyway,
        on_record=lambda record: say(
            f"measured {record.probe} in {record.seconds:.1f} s ({record.outcome})"
        ),
    )

    above = configuration.steps_above(steps)
    changes = child.changes(evidence, above) if above else None
    return Validated(tiers, evidence, verdict, changes)
