"""The verdict on a record of the fleet: its evidence, judged here. A worker's own verdict is not used."""

from __future__ import annotations

from images.errors import Problem, UserError
from images.fleet.ledger import Ledger
from images.fleet.model import ON_GPUS, FleetRecord, Job
from images.validation import limits
from validate.claims import ClaimSet
from validate.judge import Verdict, judge
from validate.judging import listed


def judged(ledger: Ledger, record: FleetRecord, job: Job, claims: ClaimSet) -> Verdict:
    """Judge the evidence of a record by `claims`; the GPU tiers by the claims that the worker wrote for its GPUs.
    What a container there can't be given is unproven (images/validation/limits.py).

    Raises UserError: the evidence is damaged, of another image than the job's, or lacks a claim that the job requires.
    """
    evidence = ledger.evidence_read(record)
    if (evidence.digest, evidence.image) != (job.digest, job.image):
        cause = f"the evidence is of {evidence.image} {evidence.digest[:19]}"
        raise UserError(Problem(where=job.key, cause=cause, then=f"take {ledger.pair(job.key)} away"), code=1)
    if not set(job.tiers) & set(ON_GPUS):
        return judge(limits.of_evidence(claims, evidence), evidence, job.tiers)
    own = {f"{one.id} {one.subject}" for one in evidence.claim_set.of(job.tiers).claims}
    if missing := sorted(set(job.required) - own):
        cause = f"the worker did not judge {listed(missing)}"
        then = "do the worker and the submitter have the same checkout? Judge the pair again"
        raise UserError(Problem(where=job.key, cause=cause, then=then), code=1)
    return judge(evidence.claim_set, evidence, job.tiers)
