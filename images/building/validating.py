"""Validates an existing image: the tiers that this machine can judge, the trial, and the name it earns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from images.engine import Engine, gpus
from images.engine.gpus import NO_GPU, Attachment
from images.engine.runtime import Runtime
from images.host import emulation
from images.planning.image import Image
from images.validation import limits, run
from validate import hints
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence, Outcome, Record
from validate.judge import Verdict, explain, judge
from validate.judging import Status, listed

ANYWHERE = (Tier.STATIC, Tier.CPU)
"""The tiers that every machine can judge: no image is named without them."""


def find_gpus(engine: Runtime, image: Image, wanted: str, tiers: Sequence[Tier]) -> tuple[Attachment, Sequence[Tier]]:
    """How the trial gets GPUs, and the tiers to judge: with none asked for, those that this host's GPUs allow.

    Raises UserError: a way that can't be had, a driver below the image's minimum.
    """
    gpus.parse(wanted)
    if image.platform.architecture != engine.facts.architecture:
        no_gpu = replace(NO_GPU, reason=f"programs of {image.platform} run emulated here, and reach no GPU")
        return no_gpu, tiers or ANYWHERE
    if tiers and Tier.GPU not in tiers and Tier.MULTIGPU not in tiers:
        return NO_GPU, tiers
    attachment = gpus.attach(engine, wanted, min_driver=image.min_driver)
    if tiers or not attachment.attached:
        return attachment, tiers or ANYWHERE
    several = attachment.inventory is not None and len(attachment.inventory.gpus) > 1
    return attachment, (*ANYWHERE, Tier.GPU, *([Tier.MULTIGPU] if several else []))


def require_platform(engine: Runtime, image: Image, say: Callable[[str], None]) -> None:
    """See that the engine's machine runs the image's programs. Raises UserError, see images/host/emulation.py.

    An engine elsewhere is taken to have what it needs: its first step says so otherwise.
    """
    if image.platform.architecture == engine.facts.architecture or not engine.facts.local:
        return
    emulation.require(image.platform, say)
    say(f"is for {image.platform}: on this machine its programs run emulated, by qemu")


def validate_image(
    engine: Runtime,
    reference: str,
    claims: ClaimSet,
    tiers: Sequence[Tier],
    attachment: Attachment = NO_GPU,
    on_record: Callable[[Record], None] = lambda _record: None,
    on_evidence: Callable[[Evidence], None] = lambda _evidence: None,
) -> tuple[Evidence, Verdict]:
    """Measure an image in a trial, judge the evidence, and explain what is known."""
    how = run.Options(tiers=tiers, gpus=attachment, on_record=on_record, on_evidence=on_evidence)
    evidence = run.measure(engine, reference, claims, how)
    return evidence, explain(judge(limits.of_evidence(claims, evidence), evidence, tiers), hints.known())


def why_withheld(verdict: Verdict, evidence: Evidence, tiers: Sequence[Tier]) -> str:
    """Why an image stays a candidate; empty if it gets its name.

    It gets it when the tiers that every machine can judge were judged, no claim failed, and each probe that was asked
    for ran to its end. UNPROVEN is no reason where a probe looked, or where the claim says why none can.
    """
    if failed := verdict.of(Status.FAIL):
        what = "1 claim" if len(failed) == 1 else f"{len(failed)} claims"
        return f"{what} failed ({listed([f'{one.claim.id} {one.claim.subject}' for one in failed])})"
    if left_out := [tier for tier in ANYWHERE if tier not in tiers]:
        return f"the {' and '.join(left_out)} tier was left out"
    asked = [one.claim for one in verdict.claims if not one.claim.unproven]
    if unseen := [f"{one.id} {one.subject}" for one in asked if not _was_run(evidence.of(one.probe))]:
        memory = ": a container of the trial ran out of memory" if evidence.host.get("out_of_memory") else ""
        return f"nobody measured {listed(unseen)}{memory}"
    records = [record for probe in {one.probe for one in asked} if (record := evidence.of(probe))]
    unended = sorted(record.probe for record in records if record.outcome is not Outcome.COMPLETED)
    return f"{listed(unended)} did not run to the end" if unended else ""


def _was_run(record: Record | None) -> bool:
    return record is not None and record.outcome is not Outcome.MISSING


def give_name(engine: Engine, image_id: str, name: str) -> None:
    """Name the image that was judged, by ID: a parallel build may have replaced the candidate by now."""
    engine.tag(image_id, name)
    candidate = engine.find(f"{name}-candidate")
    if candidate and candidate.id == image_id:
        engine.untag(f"{name}-candidate")
