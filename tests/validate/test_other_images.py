"""Another image that ran a failed claim on the same machine tells whose fault the failure is.

The evidence is that of recorded runs on an H100: an image in which TF32 was forced, and others.
"""

from dataclasses import asdict, replace
from functools import cache

from images.building.naming import why_withheld
from tests.support import recorded
from validate import report
from validate.claims import Claim, Tier
from validate.evidence import Evidence, OtherImage, Record, strict_json
from validate.judge import OF_HOST, ClaimVerdict, judge, needs_other_image
from validate.judging import Status, failed, passed

FORCED_TF32 = "cu130-torch211-py312-sm90/h100-broken-11-tf32-forced"
GOOD = "cu126-torch25/h100"
FAILED = "numerics/gemm-fp32"
"""A claim that fails with TF32 forced."""


@cache
def run_with_seed(run: str) -> Evidence:
    """Return the evidence of a recorded run, as if its seed had been 1."""
    evidence = recorded.evidence_of_today(run)
    records = tuple(replace(record, seed=1) for record in evidence.records)
    return replace(evidence, records=records, host={**evidence.host, "seed": 1})


def other_image(run: str, *, without_records: bool = False) -> OtherImage:
    """Return what a recorded run measured, as the evidence of a failed image holds it."""
    evidence = run_with_seed(run)
    records = () if without_records else evidence.records
    other: OtherImage = {
        "image": evidence.image,
        "digest": evidence.digest,
        "run": run,
        "claims": [asdict(claim) for claim in evidence.claims],
        "records": [asdict(record) for record in records],
    }
    strict: OtherImage = strict_json(other)
    return strict


def compared(*others: OtherImage, run: str = FORCED_TF32, **host: object) -> Evidence:
    """Return the evidence of a recorded run, with what other images measured."""
    evidence = run_with_seed(run)
    return replace(
        evidence,
        host={**evidence.host, "other_images": list(others), **host},  # type: ignore[typeddict-item]
    )


def judged(evidence: Evidence, key: str = FAILED) -> ClaimVerdict:
    (verdict,) = [
        verdict
        for verdict in judge(evidence.claim_set, evidence).claims
        if verdict.claim.key == key
    ]
    return verdict


ALONE = judged(compared())
"""The failure, without any other image."""


def test_an_image_that_passes_on_the_same_machine_blames_the_image() -> None:
    verdict = judged(compared(other_image(GOOD)))

    assert verdict.status is Status.FAIL
    assert verdict.reason == (
        f"{ALONE.reason}; the image cu126-torch25 passes this claim on this machine, so the fault "
        "is the image's"
    )
    assert verdict.next_step == ALONE.next_step


def test_an_image_that_passes_leaves_the_next_step_of_the_finding() -> None:
    evidence = compared(other_image(GOOD))
    findings = iter([failed("it is slow", "free the GPU"), passed("it is fast")])
    judges = {FAILED: lambda *_: next(findings)}

    claims = judge(evidence.claim_set, evidence, judges=judges).claims

    (verdict,) = [verdict for verdict in claims if verdict.claim.key == FAILED]
    assert verdict.reason.startswith("it is slow; the image cu126-torch25 passes")
    assert verdict.next_step == "free the GPU"


def test_an_image_that_fails_on_the_same_machine_too_blames_the_machine() -> None:
    evidence = compared(other_image(FORCED_TF32))
    verdict = judged(evidence)

    assert verdict.status is Status.UNPROVEN
    assert verdict.reason == (
        f"{OF_HOST}the image {evidence.image}, which passed this before on a GPU of this model, "
        f"fails here, too; this image: {ALONE.reason}"
    )
    assert "mend this machine" in verdict.next_step


def test_an_image_that_the_machine_failed_gets_no_name() -> None:
    evidence = compared(other_image(FORCED_TF32))
    verdict = judge(evidence.claim_set, evidence)

    assert verdict.overall is Status.UNPROVEN
    assert why_withheld(verdict, evidence, tuple(Tier)).startswith(OF_HOST)


def test_an_image_that_meets_a_known_fault_of_the_machine_blames_it() -> None:
    other = other_image(GOOD)
    records = []
    for data in other["records"]:
        record = Record.from_json(data)
        # CUDA_ERROR_ECC_UNCORRECTABLE
        error = {"error": {"type": "E", "message": "m", "cuda_error": 214, "cuda_call": "f"}}
        measurements = tuple(replace(row, evidence=error) for row in record.measurements)
        records.append(asdict(replace(record, measurements=measurements)))

    verdict = judged(compared({**other, "records": strict_json(records)}))

    assert verdict.status is Status.UNPROVEN
    assert verdict.reason.count(OF_HOST) == 1
    assert "fails here, too" in verdict.reason


def test_another_image_is_judged_by_its_own_claim() -> None:
    """It may have another torch. Here its claim can't be proved, and so proves nothing."""
    other = other_image(GOOD)
    claims = [{**claim, "unproven": "no wheel"} for claim in other["claims"]]

    assert judged(compared({**other, "claims": claims})) == ALONE


def test_an_image_that_fails_changes_no_claim_that_passed() -> None:
    """Another release of the suite may judge the same evidence as right."""
    evidence = compared(other_image(FORCED_TF32), run=GOOD)

    assert judged(evidence).status is Status.PASS


def test_an_image_that_did_not_run_the_claim_changes_nothing() -> None:
    without_records = other_image(GOOD, without_records=True)
    without_claims: OtherImage = {**other_image(GOOD), "claims": []}

    assert judged(compared(without_records, without_claims)) == ALONE


def test_the_first_image_that_ran_the_claim_decides() -> None:
    without_claims: OtherImage = {**other_image(FORCED_TF32), "claims": []}
    without_records = other_image(FORCED_TF32, without_records=True)

    verdict = judged(
        compared(without_claims, without_records, other_image(GOOD), other_image(FORCED_TF32))
    )

    assert "cu126-torch25 passes" in verdict.reason


def test_evidence_with_another_image_is_judged_alike_when_it_is_read_again() -> None:
    evidence = compared(other_image(FORCED_TF32))

    read = Evidence.loads(evidence.dumps())

    assert judged(read) == judged(evidence)


def test_only_required_gpu_claims_that_failed_need_another_image() -> None:
    claim = ALONE.claim
    not_on_a_gpu = Claim(
        check="pins", subject="torch", tier=Tier.STATIC, probe="static.pins", statement=""
    )

    assert needs_other_image(claim, Status.FAIL)
    assert not needs_other_image(claim, Status.UNPROVEN)
    assert not needs_other_image(replace(claim, required=False), Status.FAIL)
    assert not needs_other_image(not_on_a_gpu, Status.FAIL)


def test_the_report_says_in_a_line_what_was_not_compared_and_what_to_build() -> None:
    reason = "`nox -s build -- cu130-torch211` builds one"
    evidence = compared(not_compared={"a/1": reason, "a/2": reason, "b/1": "too long"})
    verdict = judge(evidence.claim_set, evidence)

    lines = report.lines(verdict)

    assert f"not compared with another image: a/1, a/2: {reason}" in lines
    assert "not compared with another image: b/1: too long" in lines
    assert f"not compared with another image: a/1, a/2: {reason}" in report.markdown(verdict)
