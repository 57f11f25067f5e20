"""A probe for tests: no rank comes back."""

import time
from collections.abc import Iterator, Sequence

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import RanksEvidence, Worker
from validate.claims import Claim
from validate.evidence import NoEvidence


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, RanksEvidence | NoEvidence]]:
    yield from _launch.measure(__name__, claims, limit=12)


def rank(_worker: Worker, _claim: Claim) -> None:
    time.sleep(1000)
