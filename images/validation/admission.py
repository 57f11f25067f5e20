"""Decides within a measurement whether programs of an image may run.

If files of an image are damaged, nothing of it is started: what its programs answer would be worth
nothing. The claims that decide this (ADMISSION of validate/claims.py) are judged by evidence about
files only. Apart from images/building/other_images.py, nothing else depends on a verdict before all
is measured.
"""

from collections.abc import Mapping
from dataclasses import replace

from validate import checks
from validate.claims import ADMISSION, Claim, ClaimSet
from validate.evidence import Evidence
from validate.judge import judge
from validate.judging import Status


def with_admission_claims(chosen: ClaimSet) -> ClaimSet:
    """Return the claims to measure: the chosen ones, and the admission claims if programs will run.

    `chosen`: the claims that a user chose; it also holds the admission claims among the others.
    """
    if not any(_runs_programs(claim) for claim in chosen.claims):
        return chosen
    return replace(chosen, claims=(*chosen.claims, *chosen.admission), admission=())


def _runs_programs(claim: Claim) -> bool:
    """Return whether programs of the image run to measure this claim."""
    settings = checks.settings(claim.probe)
    return claim.is_of_container and not claim.unproven and not settings.reads_files_only


def find_broken(claims: ClaimSet, evidence: Evidence) -> Mapping[str, str]:
    """Return the claims about an image's files that fail: name of the claim -> reason.

    If there is one, no program of the image should be started. Only checks in ADMISSION decide
    this. `evidence` is what has been measured so far.
    """
    deciding = claims.where(lambda claim: claim.check in ADMISSION)
    broken = {}
    for verdict in judge(deciding, evidence).claims:
        claim = verdict.claim
        # A claim that is known to be unproven was not measured on purpose. Each other one should
        # have a record. If its check ran out of memory, for example, there is none: then it is not
        # known whether the files are whole.
        is_record_missing = not claim.unproven and evidence.record_of(claim.probe) is None
        if verdict.status is Status.FAIL or is_record_missing:
            broken[claim.key] = verdict.reason
    return broken


def reasons_not_measured(
    not_measured: ClaimSet, chosen: ClaimSet, broken: Mapping[str, str]
) -> dict[str, str]:
    """Return the claims that stay unmeasured because the image's files are broken: key -> reason.

    not_measured: the claims that were still to be measured.
    chosen: those that the user chose.
    broken: the claims about files that do not hold: key -> why. There is at least one.
    """
    key, cause = next(iter(broken.items()))
    # For example: nothing of the image was run: files/recorded failed
    reason = f"nothing of the image was run: {key} failed"
    # The report shows the reasons of chosen claims only, so say why another one failed.
    if key not in {claim.key for claim in chosen.claims}:
        reason += f": {cause}"
    # The claims that are measured outside of a container are measured in any case.
    return {claim.key: reason for claim in not_measured.of_container().claims}
