"""Decides by a verdict whether an image gets its name, and gives it."""

from collections.abc import Sequence

from images.building.validating import ANYWHERE
from images.engine import Engine
from validate.claims import ADMISSION, Tier
from validate.evidence import Evidence, Outcome
from validate.judge import OF_HOST, Verdict
from validate.judging import Status, listed, plural


def why_withheld(verdict: Verdict, evidence: Evidence, tiers: Sequence[Tier]) -> str:
    """Return why a built image does not get its name; empty if it gets it.

    `verdict` and `evidence` are of its validation, and `tiers` are the groups of claims that were
    tested. Three things withhold the name: a required claim failed, the machine did not test
    everything that each machine can, or a test did not run to its end.
    """
    reason = reason_failed(verdict) or reason_of_machine(verdict, evidence, tiers)
    return reason or reason_not_measured(verdict, evidence)


def reason_failed(verdict: Verdict) -> str:
    """Return which failed claims withhold the name; empty if there are none."""
    failed = []
    for judged in verdict.claims_with(Status.FAIL):
        # After an admission claim failed, required or not, nothing of the image was run.
        if judged.claim.required or judged.claim.check in ADMISSION:
            failed.append(judged.claim.key)
    if not failed:
        return ""
    return f"{plural(len(failed), 'claim')} failed ({listed(failed)})"


def reason_of_machine(verdict: Verdict, evidence: Evidence, tiers: Sequence[Tier]) -> str:
    """Return why an image can't get its name on this machine; empty if the machine is no reason.

    It is one of three reasons: a fault of the machine explains a claim's verdict; the run left out
    a tier that every machine can judge (ANYWHERE); or the machine's processor can't run the image.
    A tier is a group of claims that need the same hardware, and `tiers` are those of the run.
    """
    # The judge begins a reason with OF_HOST where a fault of the machine explains it.
    for judged in verdict.claims:
        if judged.reason.startswith(OF_HOST):
            return judged.reason
    # ANYWHERE: the static and the cpu tier.
    left_out = [tier for tier in ANYWHERE if tier not in tiers]
    if left_out:
        return f"the {' and '.join(left_out)} tier was left out"
    # A sentence; it is there only if programs of the image can't run on this machine.
    return evidence.host.get("other_processor", "")


def reason_not_measured(verdict: Verdict, evidence: Evidence) -> str:
    """Return a sentence about what should have been tested and was not; empty if all was.

    It names the claims that no program tested. If there are none, it names the programs (probes)
    that crashed or ran out of time. Claims that are known beforehand to be unproven need no test.
    """
    unmeasured_claims = []
    unfinished_probes = set()
    for judged in verdict.claims:
        claim = judged.claim
        if claim.unproven:
            continue
        record = evidence.record_of(claim.probe)
        # Either the probe was not started (no record), or the suite has no such probe (MISSING).
        if record is None or record.outcome is Outcome.MISSING:
            unmeasured_claims.append(claim.key)
        # The probe crashed, ran past its limit of time, or left no closing record.
        elif record.outcome is not Outcome.COMPLETED:
            unfinished_probes.add(claim.probe)

    if unmeasured_claims:
        reason = f"nobody measured {listed(unmeasured_claims)}"
        if evidence.host.get("out_of_memory"):
            reason += ": a container of the validation run ran out of memory"
        return reason
    if unfinished_probes:
        return f"{listed(sorted(unfinished_probes))} did not run to the end"
    return ""


def next_step(verdict: Verdict, report: str, again: str) -> str:
    """Return what to do after an image did not get its name.

    report: the file with the reasons.
    again: what to give again then, such as a command.
    """
    if reason_failed(verdict):
        return f"read the reasons in {report}, mend what they name, then {again}"
    # Nothing is known to be wrong with the image: it was not measured here as it has to be.
    return f"once that is different, {again}, without `--tier` ({report} says more)"


def give_name(engine: Engine, handle: str, name: str) -> None:
    """Tag an image with its name, and remove its candidate tag.

    The image is named by the engine's ID: a parallel build may have moved the candidate tag to
    another one, and then that tag stays.
    """
    engine.tag(handle, name)
    candidate = engine.find(f"{name}-candidate")
    if candidate and candidate.handle == handle:
        engine.untag(f"{name}-candidate")
