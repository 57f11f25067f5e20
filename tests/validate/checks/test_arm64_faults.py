"""Faults planted in a real image for linux/arm64, one a layer, as the probes measured each: the claim that must fail.

Measured on 2026-11-22 in children of `cu130-torch211-arm64`, on an x86-64 machine. Each file holds the claim that is
named and what was measured for it. `parent.json` has the same claims of the image itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from validate.claims import Claim
from validate.evidence import Evidence
from validate.judge import Verdict, judge
from validate.judging import Status

FOLDER = Path(__file__).with_name("arm64_faults")
FAULTS = cases(__file__, "faults")


def judged(name: str) -> tuple[Evidence, Verdict]:
    evidence = Evidence.loads((FOLDER / f"{name}.json").read_text())
    return evidence, judge(evidence.claim_set, evidence)


@pytest.mark.parametrize("name", FAULTS)
def test_the_claim_that_is_for_it_fails(name: str) -> None:
    claim, subject, words = FAULTS[name]
    _, verdict = judged(name)
    (row,) = verdict.claims
    assert (row.claim.id, row.claim.subject, row.status) == (claim, subject, Status.FAIL)
    assert words in row.reason


def test_the_image_itself_passes_the_same_claims_by_the_same_expectations() -> None:
    evidence, verdict = judged("parent")
    assert {row.status for row in verdict.claims} == {Status.PASS}
    assert {(row.claim.id, row.claim.subject) for row in verdict.claims} == {
        (fault[0], fault[1]) for fault in FAULTS.values()
    }
    expected = {(claim.id, claim.subject): _expected(claim) for claim in evidence.claims}
    for name in FAULTS:
        child, _ = judged(name)
        (claim,) = child.claims
        assert _expected(claim).items() <= expected[claim.id, claim.subject].items(), name
        assert child.digest != evidence.digest


def _expected(claim: Claim) -> Mapping[str, Any]:
    """Of a child, fewer labels are expected: it has a title of its own."""
    return claim.expect["labels"] if claim.subject == "labels" else claim.expect


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*FAULTS, "parent"}
