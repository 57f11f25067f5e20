"""Judges of the cpu tier, on evidence recorded in a healthy cu126-torch27 image and on what faults make of it."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.judging import spoiled, spoiled_by, wrong
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import Verdict, judge
from validate.judging import Finding, Status

_RECORDED = json.loads(
    (Path(__file__).parents[2] / "support" / "recorded_cpu.json").read_text(encoding="utf-8")
)
CLAIMS = ClaimSet.loads(json.dumps(_RECORDED["claims"]))
RECORDS = tuple(Record.from_json(record) for record in _RECORDED["records"])
BNB = "bitsandbytes/libbitsandbytes_cuda126.so"
XFORMERS = "xformers/_C.so"
Q_PROJ = "model.layers.0.self_attn.q_proj"


def claim_of(key: str) -> Claim:
    return next(claim for claim in CLAIMS.claims if claim.key == key)


def evidence_of(claim: Claim) -> dict[str, Any]:
    record = next(record for record in RECORDS if record.probe == claim.probe)
    return copy.deepcopy(
        dict(
            next(found for found in record.measurements if found.subject == claim.subject).evidence
        )
    )


def judged(claim: Claim, evidence: dict[str, Any]) -> Finding:
    """Through judge(), so that evidence a judge can't read is seen as the runner's user sees it."""
    found = Measurement(subject=claim.subject, seconds=1.0, evidence=evidence)
    record = Record(
        probe=claim.probe, outcome=Outcome.COMPLETED, seconds=1.0, measurements=(found,)
    )
    verdict = judged_set(ClaimSet(image=CLAIMS.image, claims=(claim,)), (record,)).claims[0]
    return Finding(verdict.status, verdict.reason)


def judged_set(claims: ClaimSet, records: tuple[Record, ...]) -> Verdict:
    return judge(
        claims, Evidence(image=claims.image, digest="sha256:0", records=records), tiers=[Tier.CPU]
    )


ADAPTER = next(iter(evidence_of(claim_of("4bit-llama/lora-step"))["adapters"]))

ROWS = wrong("cpu", bnb=BNB, xformers=XFORMERS, q_proj=Q_PROJ, adapter=ADAPTER)


def test_healthy_image_is_green() -> None:
    verdict = judged_set(CLAIMS, RECORDS)
    assert {c.claim.subject: c.reason for c in verdict.claims if c.status is not Status.PASS} == {}
    assert verdict.overall is Status.PASS
    assert {claim.check for claim in CLAIMS.claims} == {
        *(
            "imports",
            "native",
            "compiler",
            "triton",
            "compile",
            "bridges",
            "threads",
            "users",
            "instructions",
        ),
        *("4bit-llama", "additions"),
    }


@pytest.mark.parametrize(
    ("key", "culprit", "changes"), ROWS, ids=[f"{key} {culprit}" for key, culprit, _ in ROWS]
)
def test_fault_is_caught_and_named(key: str, culprit: str, changes: dict[str, Any] | None) -> None:
    status, reason = judged(claim_of(key), spoiled_by(evidence_of(claim_of(key)), changes))
    assert status is Status.FAIL
    assert culprit in reason


UNREAD = {"native": {"version"}, "triton": {"environment"}, "bridges": {"torch"}}
UNREAD |= {
    "compile": {"environment"},
    "threads": {"environment"},
}
"""What a verdict does not rest on."""


@pytest.mark.parametrize("claim", CLAIMS.claims, ids=lambda claim: claim.key)
def test_evidence_with_a_part_missing_is_never_green(claim: Claim) -> None:
    assert judged(claim, {}).status is not Status.PASS
    for key in evidence_of(claim).keys() - UNREAD.get(claim.check, set()):
        assert (
            judged(claim, spoiled(evidence_of(claim), key, KeyError)).status is not Status.PASS
        ), key


@given(st.floats(min_value=0, max_value=1), st.integers(min_value=64, max_value=1 << 22))
def test_quantiser_bound_is_two_sided_and_shrinks_with_the_sample(
    error: float, blocks: int
) -> None:
    claim = claim_of("4bit-llama/weights")
    values = blocks * 64
    facts = evidence_of(claim)["projections"][Q_PROJ]
    facts |= {
        "values": values,
        "bytes": values // 2,
        "scale_bytes": blocks * 4,
        "mean_error": error,
    }
    bound = 7 * claim.expect["mean_error_sigma"] * math.sqrt(1024 * 1024 / values)
    inside = abs(error - claim.expect["mean_error"]) <= bound
    assert (judged(claim, {"projections": {Q_PROJ: facts}}).status is Status.PASS) == inside
