"""C8: a user that the image does not know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from validate.contracts.cpu import ArbitraryUidEvidence, ArbitraryUidExpect, Trained
from validate.judging import Finding, failed, listed, passed, typed, unproven
from validate.judging.numbers import is_within
from validate.judging.text import joined, root_cause


@typed
def judge(_subject: str, expect: ArbitraryUidExpect, evidence: ArbitraryUidEvidence) -> Finding:
    """C8. expect: {uid}. That the trial's own conditions held is part of what is judged."""
    conditions = []
    if evidence["uid"] != expect["uid"] or evidence["known"]:
        conditions.append(f"the probe ran as uid {evidence['uid']}, which the image knows")
    if evidence["root_is_writable"]:
        conditions.append("the root was writable")
    if set(evidence["interfaces"]) - {"lo"}:
        conditions.append(f"there was a network: {listed(evidence['interfaces'])}")
    problems = [f"{name}: {root_cause(step['error'])}" for name, step in evidence["steps"].items() if "error" in step]
    training = cast("Trained | None", evidence["steps"]["training"].get("answer"))
    if training and not (training["checkpoint"] and _falls(training["losses"])):
        problems.append(f"training: losses {training['losses']}, checkpoint {training['checkpoint']}")
    if problems:
        return failed(f"for uid {evidence['uid']}: {joined(problems)}")
    if conditions:
        return unproven(joined(conditions))
    steps = listed(list(evidence["steps"]), limit=9)
    return passed(f"uid {evidence['uid']}, read-only root, no network: {steps} work")


def _falls(losses: Sequence[float]) -> bool:
    return all(is_within(loss, math.inf) for loss in losses) and losses[-1] < losses[0]
