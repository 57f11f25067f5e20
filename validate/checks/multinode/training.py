"""two-nodes: DDP, FSDP2 and HSDP on two nodes must train as one process does.

The ranks measure what those of one host measure (validate/checks/multigpu/). Between nodes the same
sums take another way.
"""

from collections.abc import Callable, Mapping
from functools import partial

from validate.checks.multigpu import ddp, fsdp, parallel
from validate.checks.multigpu._ranks import (
    NEXT_STEP,
    ComputingRank,
    RanksEvidence,
    RanksExpect,
    Worker,
    judge_requirements,
)
from validate.checks.multinode import _nodes
from validate.claims import Claim
from validate.judging import Finding

measure = partial(_nodes.measure, __name__)


def rank(worker: Worker, claim: Claim) -> ComputingRank:
    """Return what one rank measures for a claim's subject."""
    measures: Mapping[str, Callable[[Worker], ComputingRank]] = {
        "ddp": ddp.compare_ddp,
        "fsdp2": fsdp.measure_float32,
        # Its mesh has two groups of ranks, which are the nodes.
        "hsdp": parallel.measure_hsdp,
    }
    return measures[claim.subject](worker)


REQUIREMENTS = {
    "ddp": ddp.REQUIREMENTS,
    "fsdp2": fsdp.REQUIREMENTS["float32"],
    "hsdp": parallel.REQUIREMENTS["hsdp"],
}


def judge(subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge that training on two nodes is that of one process."""
    return judge_requirements(REQUIREMENTS[subject], expect, evidence)


CLAIMS = {"two-nodes": judge}
NEXT_STEPS = {"two-nodes": NEXT_STEP}
