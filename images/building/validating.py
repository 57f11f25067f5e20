"""An image against claims: on which GPUs, what was measured, the verdict, and the name it earns.

`build`, `validate` and the workers of a fleet share it, so that all of them judge alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from images.engine import Engine, gpus
from images.engine.gpus import NO_GPU, Attachment
from images.planning.image import Image
from images.validation import run
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence, Outcome
from validate.judge import OF_HOST, Verdict, explain, judge
from validate.judging import Status, listed

ANYWHERE = (Tier.STATIC, Tier.CPU)
"""The tiers that every machine can judge: no image is named without them."""


def measure_and_judge(
    engine: Engine, reference: str, claims: ClaimSet, tiers: Sequence[Tier], *gpus: Attachment, **options: Any
) -> tuple[Evidence, Verdict]:
    """Measure an image in containers (`measure` of images/validation/run.py), judge it, and explain what is known."""
    evidence = run.measure(engine, reference, claims, tiers, *gpus, **options)
    return evidence, explain(judge(run.limited(claims, evidence.host), evidence, tiers))


def find_gpus(
    engine: Engine, image: Image, wanted: str, tiers: Sequence[Tier], say: Callable[[str], None]
) -> tuple[Attachment, Sequence[Tier]]:
    """How containers get GPUs, and the tiers to judge: with none asked for, those that this host's GPUs allow.

    Raises UserError: a way that can't be had, a driver below the image's minimum, programs that the engine's machine
    does not run (images/host/emulation.py). An engine elsewhere is taken to have what it needs.
    """
    gpus.parse(wanted)
    if image.platform.architecture != engine.facts.architecture:
        if engine.facts.local:
            from images.host import emulation  # most images are for the machine's own processor

            emulation.require(image.platform, say)
            say(f"is for {image.platform}: on this machine its programs run emulated, by qemu")
        no_gpu = replace(NO_GPU, reason=f"programs of {image.platform} run emulated here, and reach no GPU")
        return no_gpu, tiers or ANYWHERE
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

    It gets it when the tiers that every machine can judge were judged, no claim failed, and each probe that was asked
    for ran to its end. UNPROVEN is no reason where a probe looked, or where the claim says why none can.
    """
    if failed := verdict.of(Status.FAIL):
        what = "1 claim" if len(failed) == 1 else f"{len(failed)} claims"
        return f"{what} failed ({listed([f'{one.claim.id} {one.claim.subject}' for one in failed])})"
    if at_fault := next((one.reason for one in verdict.claims if one.reason.startswith(OF_HOST)), ""):
        return at_fault
    if left_out := [tier for tier in ANYWHERE if tier not in tiers]:
        return f"the {' and '.join(left_out)} tier was left out"
    asked = [one.claim for one in verdict.claims if not one.claim.unproven]
    records = {one.probe: evidence.of(one.probe) for one in asked}
    ran = {probe for probe, record in records.items() if record and record.outcome is not Outcome.MISSING}
    if unseen := [f"{one.id} {one.subject}" for one in asked if one.probe not in ran]:
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
