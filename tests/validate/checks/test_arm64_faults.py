"""Faults planted in a real image for linux/arm64, one a layer, as the probes measured each: the claim that must fail.

Measured on 2026-11-22 in children of `cu130-torch211-arm64`, on an x86-64 machine. Each file holds the claim that is
named and what was measured for it. `parent.json` has the same claims of the image itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from validate.claims import Claim
from validate.evidence import Evidence
from validate.judge import Verdict, judge
from validate.judging import Status

FOLDER = Path(__file__).with_name("arm64_faults")
FAULTS = {
    "x86-library": ("S3", "environment", "_cuda130.so can't be loaded: it is built for x86-64, not AArch64"),
    "torch-without-cuda": ("S1", "torch", "is built for no CUDA at all, 13.0 is expected"),
    "no-code-for-sm121": ("S5", "bitsandbytes", "have no code for sm_12"),
    "no-libgomp": ("S3", "environment", "libgomp"),
    "wheel-for-another-glibc": ("S1", "triton", "manylinux_2_39_aarch64, not for this Python and glibc 2.36"),
    "extension-of-another-python": ("S2", "files", "cpython-311-aarch64-linux-gnu.so belongs to no distribution"),
    "two-nccls": ("S3", "environment", "libnccl.so.2 of nvidia-nccl-cu13 has a rival on the loader's path"),
    "emptied-fat-binary": ("S5", "bitsandbytes", "holds no code for any GPU"),
    "libcuda-in-the-image": ("S6", "toolkit", "the image brings the host driver's"),
    "label-says-amd64": ("S8", "labels", "dev.truetag.platform is 'linux/amd64', 'linux/arm64' is true"),
}


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
    assert {(row.claim.id, row.claim.subject) for row in verdict.claims} == {fault[:2] for fault in FAULTS.values()}
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
