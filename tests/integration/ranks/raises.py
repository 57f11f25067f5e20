"""A probe for tests: one rank raises in the first subject; the second is measured all the same."""

from collections.abc import Iterator, Sequence
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import RanksEvidence, Worker
from validate.claims import Claim
from validate.evidence import NoEvidence


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, RanksEvidence | NoEvidence]]:
    yield from _launch.measure(__name__, claims, limit=240)


def rank(worker: Worker, claim: Claim) -> dict[str, Any]:
    if claim.subject.endswith("first") and worker.rank == 1:
        raise RuntimeError("no kernel image is available")
    return {"comparisons": {}, "facts": {}}
