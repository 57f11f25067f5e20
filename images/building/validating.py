"""An image against claims: which hold it, on which GPUs, what was measured, the verdict, and the name it earns.

`build`, `validate` and the workers of a fleet share it, so that all of them judge alike. What claims hold any image is
told by what it says of itself, and by what stands above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from images.config.matrix import Sources
from images.context import labels as image_labels
from images.context import origin
from images.engine import Engine, ImageInfo, configuration, gpus
from images.engine.gpus import NO_GPU, Attachment
from images.errors import Problem, UserError
from images.host import cache
from images.locking import lock_file
from images.planning.image import Image
from images.validation import host_look, own_python, validation_run
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from images.wheels import prebuilt
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence, Outcome
from validate.judge import OF_HOST, Verdict, explain, judge
from validate.judging import Status, listed

if TYPE_CHECKING:
    from images.validation.child import Changes

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
    """How containers get GPUs, and the tiers to judge: with none asked for, those that this host's GPUs allow.

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
    from images.engine import host_gpus  # most machines that build have no GPU to look for

    attachment = host_gpus.attach(engine, wanted, min_driver=image.min_driver)
    if tiers or not attachment.attached:
        return attachment, tiers or ANYWHERE
    several = attachment.inventory is not None and len(attachment.inventory.gpus) > 1
    return attachment, (*ANYWHERE, Tier.GPU, *([Tier.MULTIGPU] if several else []))


def why_withheld(verdict: Verdict, evidence: Evidence, tiers: Sequence[Tier]) -> str:
    """Why an image stays a candidate; empty if it gets its name.

    It gets it when the tiers that every machine can judge were judged, no required claim failed, and each probe that
    was asked for ran to its end. UNPROVEN is no reason where a probe looked, or where the claim says why none can.
    """
    if failed := [one for one in verdict.of(Status.FAIL) if one.claim.required]:
        what = "1 claim" if len(failed) == 1 else f"{len(failed)} claims"
        return f"{what} failed ({listed([one.claim.key for one in failed])})"
    if at_fault := next((one.reason for one in verdict.claims if one.reason.startswith(OF_HOST)), ""):
        return at_fault
    if left_out := [tier for tier in ANYWHERE if tier not in tiers]:
        return f"the {' and '.join(left_out)} tier was left out"
    if other_processor := evidence.host.get("other_processor"):
        return str(other_processor)
    asked = [one.claim for one in verdict.claims if not one.claim.unproven]
    records = {one.probe: evidence.of(one.probe) for one in asked}
    ran = {probe for probe, record in records.items() if record and record.outcome is not Outcome.MISSING}
    if unseen := [one.key for one in asked if one.probe not in ran]:
        memory = ": a container of the validation run ran out of memory" if evidence.host.get("out_of_memory") else ""
        return f"nobody measured {listed(unseen)}{memory}"
    unended = sorted(name for name, record in records.items() if record and record.outcome is not Outcome.COMPLETED)
    return f"{listed(unended)} did not run to the end" if unended else ""


def give_name(engine: Engine, image_id: str, name: str) -> str:
    """Name the image that was judged, by ID: a parallel build may have replaced the candidate by now.

    Returns a sentence about the image that had the name, where it has none any more and keeps its disk space; else "".
    """
    former = engine.find(name)
    engine.tag(image_id, name)
    candidate = engine.find(f"{name}-candidate")
    if candidate and candidate.id == image_id:
        engine.untag(f"{name}-candidate")
    left = engine.find(former.id) if former and former.id != image_id else None
    if not left or left.tags:
        return ""
    size = f"{left.size / 1e9:.2f} GB, layers of other images included"
    return f"the former {name} has no name any more ({size}): `docker rmi {left.id[7:19]}` removes it"


def described(engine: Engine, info: ImageInfo, name: str) -> tuple[Mapping[str, str], Sequence[str]]:
    """Labels, and steps (newest first), by which an image of an engine is judged. Where it stands on what the engine
    calls `name`, that one says what its claims go without: a custom base, or a wheel."""
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
    """The claims that an image with these labels and steps is held to. Reads the image's lock and the wheel cache.

    `history`: newest step first, wherever it was read; of one that stands on ours, it is held to them as a child.
    `only`: claims that hold one of these texts; empty: all. `attachment`: the GPUs of a host; None: of no host.
    Raises UserError: no lock, a text that is in no claim.
    """
    lock = lock_file.read(image, sources.workspace.locks)
    missing = image_labels.declared_missing(image, labels)
    compiled = prebuilt.wheel_finder(sources.matrix)
    context = ClaimContext.of(
        image,
        lock,
        sources.facts,
        missing=missing,
        custom_base=image_labels.on_custom_base(labels),
        outside=prebuilt.kept(image, missing, compiled, cache.folder()),
        origin=origin.of_labels(
            image,
            lock,
            labels,
            sources.workspace.locks,
            wheels=prebuilt.kept_digests(image, missing, compiled),
            missing=missing,
        ),
    )
    claims = image_claims(context.on_host(attachment, tiers) if attachment else context)
    if configuration.steps_above(history):
        from images.validation import child  # most images are none

        dead = {name: f"it is no longer maintained: take {row.by}" for name, row in sources.facts.replaced.items()}
        instead = "remove it (`pip uninstall {}`), or take an image of a torch that it is made for (`plan` lists them)"
        unfit = {name: f"{why}: {instead.format(name)}" for name, why in image.unfit.items()}
        claims = child.claims(
            claims,
            {**dead, **unfit},
            failing=sources.facts.failing_additions,
            conflicts=sources.facts.conflicts,
            nvcc=image.name.devel,
        )
    return chosen(claims, tiers, only) if only else claims


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

    A child of that name's image is held to them as a child is (images/validation/child.py), and has changes. Raises
    UserError.
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
    changes = None
    if steps := configuration.steps_above(history):
        from images.validation import child

        parent = host_look.find_parent(engine, image.local_name, info)
        debian = (debian_packages(engine, parent), debian_packages(engine, info)) if parent else None
        changes = child.changes(evidence, steps, info.env, debian)
    return tiers, evidence, verdict, changes


def debian_packages(engine: Engine, info: ImageInfo | None) -> dict[str, str]:
    """Debian package -> version that an image has installed, of which nothing is run; none of no image."""
    from images.validation import child

    return child.debian_packages(own_python.read_file(engine, info, _DPKG, most=1 << 24)) if info else {}
