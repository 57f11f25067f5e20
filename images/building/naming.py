"""Whether an image earns its name by what was measured, and how it gets it."""

from collections.abc import Sequence

from images.building.validating import ANYWHERE
from images.engine import Engine
from validate.claims import ADMISSION, Tier
from validate.evidence import Evidence, Outcome
from validate.judge import OF_HOST, Verdict
from validate.judging import Status, listed


def why_withheld(verdict: Verdict, evidence: Evidence, tiers: Sequence[Tier]) -> str:
    """Return why an image stays a candidate; empty if it gets its name.

    It gets it when the tiers that every machine can judge were judged, no required claim failed, and each probe that
    was asked for ran to its end. UNPROVEN is no reason where a probe looked, or where the claim says why none can.
    """
    # Nothing of an image was run after an admission claim failed, whether that is required or not.
    failed = [
        judged.claim.key
        for judged in verdict.claims_with(Status.FAIL)
        if judged.claim.required or judged.claim.check in ADMISSION
    ]
    if failed:
        count = "1 claim" if len(failed) == 1 else f"{len(failed)} claims"
        return f"{count} failed ({listed(failed)})"

    # What the machine prevented: its fault, tiers that were not asked for, another processor than the image's.
    for judged in verdict.claims:
        if judged.reason.startswith(OF_HOST):
            return judged.reason
    left_out = [tier for tier in ANYWHERE if tier not in tiers]
    if left_out:
        return f"the {' and '.join(left_out)} tier was left out"
    if "other_processor" in evidence.host:
        return evidence.host["other_processor"]

    # What no probe looked at, and probes that did not end as they should.
    measurable = [judged.claim for judged in verdict.claims if not judged.claim.unproven]
    not_measured, not_ended = [], set()
    for claim in measurable:
        record = evidence.record_of(claim.probe)
        if record is None or record.outcome is Outcome.MISSING:
            not_measured.append(claim.key)
        elif record.outcome is not Outcome.COMPLETED:
            not_ended.add(claim.probe)
    if not_measured:
        out_of_memory = evidence.host.get("out_of_memory")
        cause = ": a container of the validation run ran out of memory" if out_of_memory else ""
        return f"nobody measured {listed(not_measured)}{cause}"
    if not_ended:
        return f"{listed(sorted(not_ended))} did not run to the end"
    return ""


def give_name(engine: Engine, image_id: str, name: str) -> None:
    """Give an image its name, by its ID: a parallel build may have replaced the candidate by now."""
    engine.tag(image_id, name)
    candidate = engine.find(f"{name}-candidate")
    if candidate and candidate.id == image_id:
        engine.untag(f"{name}-candidate")
