"""The one judgement within a measurement: may anything of an image run?

Nothing of an image whose files are damaged is started: what such programs answer is worth nothing. The claims that
decide it (ADMISSION of validate/claims.py) are judged on evidence of files alone.
"""

from collections.abc import Mapping
from dataclasses import replace

from validate import checks
from validate.claims import ADMISSION, Claim, ClaimSet
from validate.evidence import Evidence
from validate.judge import judge
from validate.judging import Status


def with_admission_claims(chosen: ClaimSet) -> ClaimSet:
    """Return the chosen claims; with the admission claims that were not chosen, if anything of the image will run."""
    if not any(_runs_programs(claim) for claim in chosen.claims):
        return chosen
    return replace(chosen, claims=(*chosen.claims, *chosen.admission), admission=())


def _runs_programs(claim: Claim) -> bool:
    settings = checks.settings(claim.probe)
    return claim.is_inside and not claim.unproven and not settings.reads_files_only


def judge_first(claims: ClaimSet, evidence: Evidence) -> Mapping[str, str]:
    """Return why nothing of the image may run: each admission claim (by its key) that does not hold, and why not.

    `evidence`: of the image's files. Empty: everything may run.
    """
    deciding = claims.where(lambda claim: claim.check in ADMISSION)
    broken = {}
    for verdict in judge(deciding, evidence).claims:
        claim = verdict.claim
        # A reader that ran out of memory leaves no record. What is known to be unproven was not measured on purpose.
        was_measured = claim.unproven or evidence.record_of(claim.probe)
        if verdict.status is Status.FAIL or not was_measured:
            broken[claim.key] = verdict.reason
    return broken


def left_unproven(not_run: ClaimSet, chosen: ClaimSet, broken: Mapping[str, str]) -> dict[str, str]:
    """Return the reason of each claim (by its key) that is not measured because the image's files are broken.

    A reader who did not choose the broken claim gets its reason here, too.
    """
    key, cause = next(iter(broken.items()))
    reason = f"nothing of the image was run: {key} failed"
    if key not in {claim.key for claim in chosen.claims}:
        reason += f": {cause}"
    return {claim.key: reason for claim in not_run.inside().claims}
