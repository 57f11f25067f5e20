"""two-nodes/scaling: how many tokens a second two nodes train by DDP, compared with one GPU.

It is `scaling/ddp` of one host (validate/checks/multigpu/scaling.py), over the nodes' network.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from validate.checks import Settings
from validate.checks.multigpu import scaling
from validate.checks.multinode import _nodes
from validate.claims import Claim

SETTINGS = Settings(runs_alone=True)

rank = scaling.rank


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the claim's subject, and on the first node what the ranks of both measured."""
    by_ddp = [replace(claim, subject="ddp") for claim in claims]
    for _subject, evidence in scaling.measure(by_ddp, partial(_nodes.measure, __name__)):
        yield claims[0].subject, evidence


CLAIMS = {"two-nodes/scaling": scaling.judge}
NEXT_STEPS = {"two-nodes/scaling": scaling.NEXT_STEPS["scaling"]}
