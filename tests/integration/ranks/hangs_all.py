"""A probe for tests: no rank comes back."""

import time
from collections.abc import Iterator, Sequence

from validate.claims import Claim
from validate.contracts import NoEvidence
from validate.contracts.multigpu import RanksEvidence
from validate.probes.multigpu import _launch
from validate.probes.multigpu._worker import Worker


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, RanksEvidence | NoEvidence]]:
    yield from _launch.measure(__name__, claims, limit=12)


def rank(_worker: Worker, _claim: Claim) -> None:
    time.sleep(1000)
