"""Holds an image to its claims: chooses claims and GPUs, measures, and judges.

`build`, `validate` and the workers of a fleet share this, so that all of them judge alike. Which
claims an image is held to follows from its labels, and from the build steps above those of our
Dockerfile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

from images.building import earlier_run
from images.config.matrix import Sources
from images.context import base_images, origin
from images.context import labels as image_labels
from images.engine import Engine, ImageInfo, configuration, host_gpus
from images.engine.gpus import NO_GPU, Attachment
from images.errors import Problem, UserError, wrong
from images.hardware.inventory import GpuMode
from images.host import cache
from images.locking import lock_file
from images.planning.image import Image
from images.validation import derived_image, own_python, validation_run
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from images.validation.derived_image import Changes, derived_rules
from images.wheels import prebuilt, private_wheels
from validate.claims import GPU_TIERS, ON_REQUEST, ClaimSet, Tier
from validate.derived import (
    DECLARATION,
    NOTHING_DECLARED,
    Declaration,
    derived_claims,
    parse_declaration,
)
from validate.evidence import Evidence, Record
from validate.judge import Verdict, explain, judge, judge_record
from validate.judging import Status

ANYWHERE = (Tier.STATIC, Tier.CPU)
"""The tiers that every machine can judge: no image is named without them."""
Compare = Callable[[Evidence, Verdict, Attachment], None]
"""Adds to the evidence what other images measured of the GPU claims that failed
(other_images.OtherImages.compare)."""
_MOST_SUGGESTIONS = 6
"""Names that a message suggests at most in place of an unknown one."""


def compare_nothing(_evidence: Evidence, _verdict: Verdict, _gpus: Attachment) -> None:
    """Add nothing: failed claims are not run in other images."""


class Validated(NamedTuple):
    """An image that was held to a name's claims."""

    tiers: Sequence[Tier]
    """What was measured."""
    evidence: Evidence
    verdict: Verdict
    changes: Changes | None
    """What a derived image changed. None: it is no derived image, or was not compared."""
    is_reused: bool
    """Whether the evidence is that of the earlier run."""


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
    earlier: Evidence | None = None,
    compare: Compare = compare_nothing,
    say: Callable[[str], None],
) -> Validated:
    """Validate an image of the engine: test what matrix.yaml claims about it, and judge the result.

    image: the row of matrix.yaml that makes the claims.
    reference: the image to test. It may be one that a user built on top of ours.
    tiers: the groups of claims to test; empty: all that this machine can.
    only: names or patterns of claims (`pins/torch`); empty: all claims.
    run_anyway: run programs of the image even if its files are broken.
    earlier: the evidence of an earlier run, which stands for this one if its inputs are the same.
    compare: called if GPU claims failed, to run them in other images.
    say: called with lines about the progress.

    Raises UserError if there is no lock, or if the image can't be tested.
    """
    # A missing or stale lock is reported before anything is asked of the engine.
    lock_file.read(image, sources.workspace.locks)
    info = engine.inspect(reference)
    attachment, tiers = find_gpus(engine, image, gpus, tiers, say)
    say(str(attachment))

    def say_measured(record: Record) -> None:
        say(record.progress_line())

    steps = engine.steps(info.handle)
    # Steps above those of our Dockerfile make it a derived image: a user built it on top of ours.
    steps_above = configuration.steps_above(steps)
    declared = NOTHING_DECLARED
    if steps_above:
        declared = read_declaration(engine, info)
    claims = claims_of(
        image,
        sources,
        info.labels,
        steps,
        tiers,
        only=only,
        attachment=attachment,
        declared=declared,
    )
    say(f"judging {reference} ({info.digest[:19]})")
    evidence, verdict = measure_and_judge(
        engine,
        info.handle,
        claims,
        tiers,
        attachment,
        other_base=base_images.other_base(image, info.labels),
        run_anyway=run_anyway,
        earlier=earlier,
        compare=compare,
        say=say,
        on_record=say_measured,
    )

    changes = None
    if steps_above:
        changes = derived_image.find_changes(evidence, steps_above)
    return Validated(tiers, evidence, verdict, changes, evidence is earlier)


def find_gpus(
    engine: Engine,
    image: Image,
    gpu_mode: GpuMode,
    tiers: Sequence[Tier],
    say: Callable[[str], None],
) -> tuple[Attachment, Sequence[Tier]]:
    """Return how containers get GPUs, and the tiers to judge.

    A tier is a group of claims that need the same hardware: files only (static), a CPU, one GPU, or
    several. `tiers`: those that were asked for; empty: all that the machine allows. `say` gets a
    line if the image is for another processor. Raises UserError if GPUs can't be attached as
    `gpu_mode` says, or if the driver is below the image's minimum.
    """
    # Of an image for another processor, only the files can be read here.
    platform = image.name.platform
    if platform.architecture != engine.facts.architecture:
        reason = f"programs for {platform} do not run on this machine ({engine.facts.architecture})"
        say(f"{reason}: checks that run any stay UNPROVEN, and the image gets no name here")
        return replace(NO_GPU, reason=reason), tiers or ANYWHERE
    # None of the tiers that were asked for needs a GPU.
    if tiers and not set(tiers) & set(GPU_TIERS):
        return NO_GPU, tiers

    attachment = host_gpus.attach(engine, gpu_mode, min_driver=image.min_driver)
    if tiers:
        return attachment, tiers
    # No tiers were asked for, so they follow from the number of GPUs. If that is not known (no
    # inventory), one GPU is assumed.
    if not attachment.attached:
        return attachment, ANYWHERE
    if attachment.inventory is None or len(attachment.inventory.gpus) < 2:
        return attachment, (*ANYWHERE, Tier.GPU)
    return attachment, tuple(tier for tier in Tier if tier not in ON_REQUEST)


def claims_of(
    image: Image,
    sources: Sources,
    labels: Mapping[str, str],
    steps: Sequence[str],
    tiers: Sequence[Tier],
    *,
    only: Sequence[str] = (),
    attachment: Attachment | None = None,
    declared: Declaration = NOTHING_DECLARED,
) -> ClaimSet:
    """Return the claims about an image: the statements that a validation run tests.

    image: the row of the matrix that makes the claims.
    labels: those of the image to test. They name the optional packages that it lacks, and its base.
    steps: the build steps of the image to test. If it has more than we build, a user built it on
        top of ours, and other claims apply.
    tiers: the groups of claims that are tested on this host.
    only: names or patterns of claims (`pins/torch`, `pins`, `pins/t*`); empty: all claims.
    attachment: the host's GPUs; None: claims for any host.
    declared: what an image on top of ours says that it changes on purpose.

    Raises UserError if there is no lock, or if a text of `only` names no claim.
    """
    context = read_claim_context(image, sources, labels)
    if attachment:
        context = context.on_host(attachment, tiers)
    claims = image_claims(context)
    if configuration.steps_above(steps):
        claims = derived_claims(claims, derived_rules(image, sources), declared)
    return choose_claims(claims, tiers, only) if only else claims


def read_claim_context(image: Image, sources: Sources, labels: Mapping[str, str]) -> ClaimContext:
    """Return what the claims about a built image are made from, whatever machine measures them.

    Reads the image's lock (the versions of all its packages), the record of layers and the cache of
    wheels. `labels`: the image's own. They say which optional wheels it lacks, and whether it
    stands on a custom base, one of the user. Raises UserError if there is no lock.
    """
    lock = lock_file.read(image, sources.workspace.locks)
    # Package -> why the image goes without it.
    missing = image_labels.declared_missing(image, labels)

    # Path of each wheel that build steps get as a file -> its sha256. Nothing is downloaded: only
    # those that lie in the cache already can be read.
    find_wheel = prebuilt.wheel_finder(sources.matrix)
    wheels = prebuilt.expected_wheels(image, missing, find_wheel, cache.folder())
    wheels |= private_wheels.locate(lock, cache.folder())
    wheels_here = [path for path in wheels if path.is_file()]

    # The recipe has the digests of all that the layers are made from. Among these are all of the
    # wheels, also those that are not on this machine.
    image_origin = origin.of_labels(
        image,
        lock,
        labels,
        sources.workspace.locks,
        wheels={path.name: digest for path, digest in wheels.items()},
        missing=missing,
    )
    return ClaimContext.from_lock(
        image,
        lock,
        sources.facts,
        missing=missing,
        custom_base=image_labels.on_custom_base(labels),
        outside=prebuilt.record_digests(image, wheels_here),
        origin=image_origin,
    )


def read_declaration(engine: Engine, info: ImageInfo) -> Declaration:
    """Return what a derived image declares in its file DECLARATION; nothing if it has none.

    Raises UserError if the file is not as validate/derived.py describes it.
    """
    text = own_python.read_file(engine, info, DECLARATION)
    try:
        return parse_declaration(text)
    except ValueError as error:
        then = "correct this file in your Dockerfile, and build again (docs/extending.md)"
        raise wrong(f"{DECLARATION} of the image", str(error), then) from None


def choose_claims(claims: ClaimSet, tiers: Sequence[Tier], texts: Sequence[str]) -> ClaimSet:
    """Return the claims of these tiers that the texts name; none without texts.

    `texts` are the values of the option --claim. The claim that the check `pins` makes about its
    subject `torch` is named by `pins/torch`, `pins`, `torch` or `pins/t*`. Claims that decide
    whether the image may be started stay in the result, in its field `admission`. Raises UserError
    about all texts that name no claim, with similar names.
    """
    in_tiers = claims.in_tiers(tiers)
    problems = []
    for text in texts:
        if not in_tiers.named_by([text]).claims:
            suggestions = ", ".join(similar_names(text, in_tiers))
            cause = f"{claims.image} has no such check in the tiers {', '.join(tiers)}"
            then = f"give --claim one of these: {suggestions}"
            problems.append(Problem(where=f"--claim {text!r}", cause=cause, then=then))
    if problems:
        raise UserError(problems)
    return in_tiers.named_by(texts)


def similar_names(text: str, claims: ClaimSet) -> list[str]:
    """Return the names of claims and checks that are similar to a text; all checks if none is."""
    checks = list(dict.fromkeys(claim.check for claim in claims.claims))
    keys = [claim.key for claim in claims.claims]
    similar = get_close_matches(text, [*checks, *keys], n=_MOST_SUGGESTIONS, cutoff=0.5)
    containing = [key for key in keys if text in key]
    suggestions = list(dict.fromkeys([*similar, *containing]))
    return suggestions[:_MOST_SUGGESTIONS] or checks


def measure_and_judge(
    engine: Engine,
    reference: str,
    claims: ClaimSet,
    tiers: Sequence[Tier],
    gpus: Attachment = NO_GPU,
    *,
    other_base: str = "",
    run_anyway: bool = False,
    earlier: Evidence | None = None,
    compare: Compare = compare_nothing,
    say: Callable[[str], None] = lambda _text: None,
    on_record: Callable[[Record], None] = lambda _record: None,
) -> tuple[Evidence, Verdict]:
    """Test claims about an image in containers, and return what was measured and the verdict on it.

    reference: the image, as the engine names it.
    claims: statements about the image. Only those of `tiers` are tested.
    gpus: how containers get GPUs.
    other_base: the base that the image stands on in place of the matrix's; empty: its own.
    run_anyway: run programs of the image even if its files are broken.
    earlier: the evidence of an earlier run. If its inputs are those of this run, nothing is
        measured: this evidence is judged again, and returned.
    compare: adds what other images measured of the GPU claims that failed.
    say: called with the reason if `earlier` does not stand for this run, and with each required
        claim that failed, as soon as it was measured.
    on_record: called with what each check measured.

    An image that fails raises nothing. Raises UserError if it could not be tested.
    """

    def describe_inputs() -> earlier_run.Inputs:
        """Return what the result of this run depends on, as it is now."""
        image = engine.inspect(reference)
        return earlier_run.describe_inputs(
            engine, image, claims, tiers, gpus, other_base=other_base, run_anyway=run_anyway
        )

    inputs = describe_inputs()
    if earlier is not None:
        reason = earlier_run.reason_to_measure(earlier, inputs)
        if not reason:
            return earlier, explain(judge(earlier.claim_set, earlier))
        say(f"measured again: {reason}")

    def tell(record: Record) -> None:
        """Pass on what a check measured, and tell at once which required claims failed by it."""
        on_record(record)
        for judged in judge_record([*claims.claims, *claims.admission], record):
            if judged.status is Status.FAIL and judged.claim.required:
                say(f"failed so far: {judged.claim.key}: {judged.reason}")

    evidence = validation_run.validate(
        engine, reference, claims, tiers, gpus, run_anyway=run_anyway, on_record=tell
    )
    # The name of the image is that of the matrix, and says nothing of another base. So the evidence
    # must say it.
    if other_base:
        evidence.host["other_base"] = other_base
    # If something was changed meanwhile, nobody knows which checks saw it.
    if describe_inputs() == inputs:
        evidence.host["inputs"] = inputs
    # The claims of the evidence: those of `claims` that were to be measured, and any others about
    # the image's files that show it to be broken.
    verdict = judge(evidence.claim_set, evidence)
    # Whose fault is a failure on a GPU? If another image ran the claim, judge by that, too.
    compare(evidence, verdict, gpus)
    if evidence.host.keys() & {"other_images", "not_compared"}:
        verdict = judge(evidence.claim_set, evidence)
    # `explain` adds hints: known errors whose text a claim's evidence holds.
    return evidence, explain(verdict)
