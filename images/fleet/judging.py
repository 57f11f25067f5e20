"""The verdict on a record of the fleet: its evidence, judged here. A worker's own verdict is not used."""

from __future__ import annotations

from images.errors import Problem, UserError
from images.fleet.ledger import Ledger
from images.fleet.model import ON_GPUS, FleetRecord, Job
from validate.claims import ClaimSet
from validate.judge import Verdict, judge


def judged(ledger: Ledger, record: FleetRecord, job: Job, claims: ClaimSet) -> Verdict:
    """Judge the evidence of a record by `claims`; the GPU tiers by the claims that the worker wrote for its GPUs.

    Raises UserError: the evidence is damaged, or of another image than the job's.
    """
    evidence = ledger.evidence_read(record)
    if (evidence.digest, evidence.image) != (job.digest, job.image):
        cause = f"the evidence is of {evidence.image} {evidence.digest[:19]}"
        raise UserError(Problem(where=job.key, cause=cause, then=f"take {ledger.pair(job.key)} away"), code=1)
    held_to = evidence.claim_set if set(job.tiers) & set(ON_GPUS) else claims
    return judge(held_to, evidence, job.tiers)
