"""P3 on several GPUs: the profile's examples, run as users run them, against plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validate.claims import Claim
from validate.contracts.profile import BehaviourEvidence
from validate.examples import evidence


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield the evidence of each example asked for."""
    return evidence.measure(claims, device="cuda")
