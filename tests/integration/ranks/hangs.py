"""A probe for tests: one rank never comes back."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import RanksEvidence, Worker
from validate.claims import Claim
from validate.evidence import NoEvidence


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, RanksEvidence | NoEvidence]]:
    yield from _launch.measure(__name__, claims, limit=240, patience=8)


def rank(worker: Worker, claim: Claim) -> dict[str, Any]:
    if worker.rank == 1:
        time.sleep(1000)
    return {"comparisons": {}, "facts": {}}
