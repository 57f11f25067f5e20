"""A probe for tests: one rank raises in the first subject; the second is measured all the same."""

from collections.abc import Iterator, Sequence

from validate.claims import Claim
from validate.contracts import NoEvidence
from validate.contracts.multigpu import ComparisonsResult, RanksEvidence
from validate.probes.multigpu import _launch
from validate.probes.multigpu._worker import Worker


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, RanksEvidence | NoEvidence]]:
    yield from _launch.measure(__name__, claims, limit=240)


def rank(worker: Worker, claim: Claim) -> ComparisonsResult:
    if claim.subject.endswith("first") and worker.rank == 1:
        raise RuntimeError("no kernel image is available")
    return {"comparisons": {}, "facts": {}}
