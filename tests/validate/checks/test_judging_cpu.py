"""Judges of the cpu tier, on evidence of a healthy cu126-torch27 image and on spoiled evidence."""

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.judging import spoiled, spoiled_by, wrong
from validate.checks.cpu import native
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import Verdict, judge
from validate.judging import Finding, Status

_RECORDED = json.loads(
    (Path(__file__).parents[2] / "support" / "recorded_cpu.json").read_text(encoding="utf-8")
)
CLAIMS = ClaimSet.loads(json.dumps(_RECORDED["claims"]))
RECORDS = tuple(Record.from_json(record) for record in _RECORDED["records"])
CHECKS = {
    "imports",
    "native",
    "compiler",
    "triton",
    "compile",
    "threads",
    "users",
    "instructions",
    "4bit-llama",
    "additions",
}
"""The checks whose evidence is recorded."""
Q_PROJ = "model.layers.0.self_attn.q_proj"
UNREAD = {
    "native": {"version"},
    "triton": {"environment"},
    "compile": {"environment"},
    "threads": {"environment"},
}
"""Check -> keys of its evidence on which no verdict rests: they are for people."""


def claim_of(key: str) -> Claim:
    return next(claim for claim in CLAIMS.claims if claim.key == key)


def recorded_evidence(claim: Claim) -> dict[str, Any]:
    """A copy of what the healthy image measured for a claim."""
    for record in RECORDS:
        measurement = record.measurement_of(claim.subject)
        if record.probe == claim.probe and measurement:
            return copy.deepcopy(dict(measurement.evidence))
    raise LookupError(claim.key)


def judge_evidence(claim: Claim, evidence: dict[str, Any]) -> Finding:
    """Judge one claim.

    Through judge(), so that evidence a judge can't read is seen as the runner's user sees it.
    """
    measurement = Measurement(subject=claim.subject, seconds=1.0, evidence=evidence)
    record = Record(
        probe=claim.probe, outcome=Outcome.COMPLETED, seconds=1.0, measurements=(measurement,)
    )
    (judged,) = judge_records(ClaimSet(image=CLAIMS.image, claims=(claim,)), (record,)).claims
    return Finding(judged.status, judged.reason)


def judge_records(claims: ClaimSet, records: tuple[Record, ...]) -> Verdict:
    evidence = Evidence(image=claims.image, digest="sha256:0", records=records)
    return judge(claims, evidence, tiers=[Tier.CPU])


FAULTS = wrong(
    "cpu",
    bnb="bitsandbytes/libbitsandbytes_cuda126.so",
    xformers="xformers/_C.so",
    q_proj=Q_PROJ,
    adapter=next(iter(recorded_evidence(claim_of("4bit-llama/lora-step"))["adapters"])),
)
"""(claim, what its reason must say, what is changed in its evidence): wrong.yaml."""


def test_a_healthy_image_passes() -> None:
    verdict = judge_records(CLAIMS, RECORDS)

    not_passed = {
        judged.claim.subject: judged.reason
        for judged in verdict.claims
        if judged.status is not Status.PASS
    }
    assert not_passed == {}
    assert verdict.overall is Status.PASS
    assert {claim.check for claim in CLAIMS.claims} == CHECKS


@pytest.mark.parametrize(
    ("key", "culprit", "changes"),
    FAULTS,
    ids=[f"{key} {culprit}" for key, culprit, _ in FAULTS],
)
def test_a_fault_fails_and_its_culprit_is_named(
    key: str, culprit: str, changes: dict[str, Any] | None
) -> None:
    claim = claim_of(key)
    evidence = spoiled_by(recorded_evidence(claim), changes)

    status, reason, _ = judge_evidence(claim, evidence)

    assert status is Status.FAIL
    assert culprit in reason


@pytest.mark.parametrize("claim", CLAIMS.claims, ids=lambda claim: claim.key)
def test_evidence_with_a_part_missing_never_passes(claim: Claim) -> None:
    assert judge_evidence(claim, {}).status is not Status.PASS
    for key in recorded_evidence(claim).keys() - UNREAD.get(claim.check, set()):
        evidence = spoiled(recorded_evidence(claim), key, KeyError)
        assert judge_evidence(claim, evidence).status is not Status.PASS, key


BLOCK_VALUES, SCALE_BYTES = 64, 4
PUBLISHED_SAMPLE = 1024 * 1024


@given(
    error=st.floats(min_value=0, max_value=1), blocks=st.integers(min_value=64, max_value=1 << 22)
)
def test_the_mean_error_of_nf4_may_differ_both_ways_and_less_the_more_values_there_are(
    error: float, blocks: int
) -> None:
    claim = claim_of("4bit-llama/weights")
    values = blocks * BLOCK_VALUES
    projection = recorded_evidence(claim)["projections"][Q_PROJ]
    projection |= {
        "values": values,
        "bytes": values // 2,
        "scale_bytes": blocks * SCALE_BYTES,
        "mean_error": error,
    }

    finding = judge_evidence(claim, {"projections": {Q_PROJ: projection}})

    seven_sigmas = 7 * claim.expect["mean_error_sigma"] * math.sqrt(PUBLISHED_SAMPLE / values)
    is_near = abs(error - claim.expect["mean_error"]) <= seven_sigmas
    assert (finding.status is Status.PASS) == is_near


@pytest.mark.parametrize(("status", "version"), [(0, 12060), (3, 0)])
def test_a_cuda_runtime_that_reports_an_error_has_no_version(
    monkeypatch: pytest.MonkeyPatch, status: int, version: int
) -> None:
    def get_version(place: Any) -> int:
        """Write a version, like CUDA's function of the same name, and return its status."""
        place._obj.value = 12060
        return status

    runtime = SimpleNamespace(cudaRuntimeGetVersion=get_version)
    monkeypatch.setattr(native.ctypes, "CDLL", lambda _path: runtime)

    assert native.ask_runtime_for_version("libcudart.so.12") == version
