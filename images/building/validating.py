"""An image against claims: which claims hold it, on which GPUs it is measured, and the verdict.

`build`, `validate` and the workers of a fleet share it, so that all of them judge alike. Which claims hold an image
follows from its labels, and from the build steps above those of our Dockerfile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from images.config.matrix import Sources
from images.context import labels as image_labels
from images.context import origin
from images.engine import Engine, ImageInfo, configuration, gpus, host_gpus
from images.engine.gpus import NO_GPU, Attachment
from images.errors import Problem, UserError
from images.host import cache
from images.locking import lock_file
from images.planning.image import Image
from images.validation import child, host_look, own_python, validation_run
from images.validation.child import Changes
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from images.wheels import prebuilt
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import Verdict, explain, judge

ANYWHERE = (Tier.STATIC, Tier.CPU)
"""The tiers that every machine can judge: no image is named without them."""
_DPKG = "/var/lib/dpkg/status"
_MOST_NEAR = 6  # names that a message proposes in place of an unknown one


def measure_and_judge(
    engine: Engine, reference: str, claims: ClaimSet, tiers: Sequence[Tier], *gpus: Attachment, **options: Any
) -> tuple[Evidence, Verdict]:
    """Measure an image in containers (images/validation/validation_run.py), judge it, and explain what is known."""
    evidence = validation_run.validate(engine, reference, claims, tiers, *gpus, **options)
    return evidence, explain(judge(evidence.claim_set, evidence))


def find_gpus(
    engine: Engine, image: Image, wanted: str, tiers: Sequence[Tier], say: Callable[[str], None]
) -> tuple[Attachment, Sequence[Tier]]:
    """Return how containers get GPUs, and the tiers to judge: if none is asked for, those that this host allows.

    Raises UserError: a way that can't be had, a driver below the image's minimum.
    """
    gpus.parse(wanted)
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


def described(engine: Engine, info: ImageInfo, name: str) -> tuple[Mapping[str, str], Sequence[str]]:
    """Return the labels and the build steps (newest first) by which an image of an engine is judged.

    If it stands on what the engine calls `name`, the labels are that image's: they say what the claims go without (a
    wheel, or a base of ours).
    """
    parent = host_look.find_parent(engine, name, info) or info
    return parent.labels, host_look.history(engine, name, info)


def claims_of(
    image: Image,
    sources: Sources,
    labels: Mapping[str, str],
    history: Sequence[str],
    tiers: Sequence[Tier],
    *,
    only: Sequence[str] = (),
    attachment: Attachment | None = None,
) -> ClaimSet:
    """Return the claims that hold an image with these labels and steps. Reads the image's lock and the wheel cache.

    `history`: newest step first, wherever it was read; steps above ours make it a derived image (validation/child.py).
    `only`: claims that hold one of these texts; empty: all. `attachment`: the GPUs of a host; None: of no host.
    Raises UserError: no lock, a text that is in no claim.
    """
    lock = lock_file.read(image, sources.workspace.locks)
    missing = image_labels.declared_missing(image, labels)
    wheels = prebuilt.expected_wheels(image, missing, prebuilt.wheel_finder(sources.matrix), cache.folder())
    context = ClaimContext.of(
        image,
        lock,
        sources.facts,
        missing=missing,
        custom_base=image_labels.on_custom_base(labels),
        outside=prebuilt.records(image, [path for path in wheels if path.is_file()]),
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
    if configuration.steps_above(history):
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
    reasons = {name: f"it is no longer maintained: take {row.by}" for name, row in sources.facts.replaced.items()}
    for name, why in image.unfit.items():
        remedy = f"remove it (`pip uninstall {name}`), or take an image of a torch that it is made for"
        reasons[name] = f"{why}: {remedy} (`plan` lists them)"
    return reasons


def chosen(claims: ClaimSet, tiers: Sequence[Tier], texts: Sequence[str]) -> ClaimSet:
    """Return the claims of these tiers that the texts name. Raises UserError for a text that names none."""
    in_tiers = claims.of(tiers)
    problems = []
    for text in texts:
        if not in_tiers.about([text]).claims:
            cause = f"names no claim of {claims.image} in {', '.join(tiers)}"
            then = f"name a claim, or all of a check: {', '.join(_near(text, in_tiers))}"
            problems.append(Problem(where=f"--claim {text!r}", cause=cause, then=then))
    if problems:
        raise UserError(problems)
    return in_tiers.about(texts)


def _near(text: str, claims: ClaimSet) -> list[str]:
    """Return the names of claims and checks that are nearest to a text; the checks if none is near."""
    checks = list(dict.fromkeys(claim.check for claim in claims.claims))
    names = [claim.key for claim in claims.claims]
    containing = [name for name in names if text in name]
    near = get_close_matches(text, [*checks, *names], n=_MOST_NEAR, cutoff=0.5)
    return list(dict.fromkeys([*near, *containing]))[:_MOST_NEAR] or checks


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
    """Hold any image to a name's claims. `tiers`: none means all that the machine can. `options`: of
    validation_run.validate.

    A derived image is held to them as such, and has changes (images/validation/child.py). Raises UserError.
    """
    lock_file.read(image, sources.workspace.locks)  # before anything is asked of the engine
    info = engine.inspect(reference)
    attachment, tiers = find_gpus(engine, image, gpus, tiers, say)
    say(str(attachment))
    labels, history = described(engine, info, image.local_name)
    claims = claims_of(image, sources, labels, history, tiers, only=only, attachment=attachment)
    say(f"measuring {reference} ({info.id[:19]})")
    evidence, verdict = measure_and_judge(
        engine,
        info.id,
        claims,
        tiers,
        attachment,
        on_record=lambda one: say(f"measured {one.probe} in {one.seconds:.1f} s ({one.outcome})"),
        **options,
    )
    steps = configuration.steps_above(history)
    if not steps:
        return tiers, evidence, verdict, None
    debian = None
    if parent := host_look.find_parent(engine, image.local_name, info):
        debian = debian_packages(engine, parent), debian_packages(engine, info)
    return tiers, evidence, verdict, child.changes(evidence, steps, info.env, debian)


def debian_packages(engine: Engine, info: ImageInfo | None) -> dict[str, str]:
    """Return the Debian packages of an image, with their versions; of no image, none. Nothing of the image is run."""
    if info is None:
        return {}
    return child.debian_packages(own_python.read_file(engine, info, _DPKG, most=1 << 24))
