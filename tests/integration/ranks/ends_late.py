"""A probe for tests: native code wants the interpreter's lock while a rank ends, as gloo's threads do for tensors."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import RanksEvidence, Worker
from validate.claims import Claim
from validate.evidence import NoEvidence


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, RanksEvidence | NoEvidence]]:
    yield from _launch.measure(__name__, claims, limit=240)


def rank(worker: Worker, _claim: Claim) -> dict[str, Any]:
    threading.Thread(target=_multiply, args=(worker.torch,), daemon=True).start()
    return {"comparisons": {}, "facts": {}}


def _multiply(torch: Any) -> None:
    some = torch.ones(256, 256)
    while True:
        some @ some
