"""What a test result says of the tiers of an image, and where a signed one says more than the evidence."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.host.hashing import sha256
from images.publish import attestation
from images.publish.attestation import Attestation
from images.publish.statements import test_results
from images.publish.statements.test_results import EXTENSION, FAILED, PASSED, UNPROVEN
from tests.support.attested import DIGEST, PIP
from tests.support.published import CLAIMS, GPU_PIP, attested_files
from validate.claims import Claim

EARLY, LATE = "2026-11-01T10:00:00+00:00", "2026-11-20T12:00:00+02:00"


def trial(*claims: Claim, date: str = LATE, **more: Any) -> Attestation:
    return attestation.read(*attested_files(DIGEST, date, claims, **more), "a trial")


def test_each_tier_has_a_result_a_date_and_its_evidence() -> None:
    said = test_results.predicate([trial(PIP, date=EARLY), gpu := trial(GPU_PIP)], CLAIMS)
    assert said["result"] == PASSED and not said["failedTests"] and not said["warnedTests"]
    assert said["passedTests"] == ["gpu/S1 pip-on-gpu", "static/S1 pip"]
    assert said[EXTENSION]["gpu"] == {
        "result": PASSED,
        "measuredOn": "2026-11-20T10:00:00Z",
        "evidence": f"sha256:{sha256(gpu.evidence_file)}",
        "gpus": ["NVIDIA H100"],
        "driver": "580.95",
        "unproven": [],
    }
    assert said[EXTENSION]["static"]["measuredOn"] == "2026-11-01T10:00:00Z"
    assert len(said["configuration"]) == 2


def test_a_tier_that_nobody_judged_is_not_there() -> None:
    assert list(test_results.predicate([trial(PIP)], CLAIMS)[EXTENSION]) == ["static"]
    assert test_results.predicate([], CLAIMS)["result"] == FAILED


def test_the_newest_trial_that_passed_a_tier_decides() -> None:
    """A newer one that measured a part of it does not make it younger."""
    other = replace(GPU_PIP, subject="more")
    claims = replace(CLAIMS, claims=(GPU_PIP, other))
    found = [trial(GPU_PIP, other, date=EARLY), trial(GPU_PIP, date=LATE)]
    said = test_results.predicate(found, claims)[EXTENSION]["gpu"]
    assert (said["result"], said["measuredOn"]) == (PASSED, "2026-11-01T10:00:00Z")


@pytest.mark.parametrize(
    ("found", "result"),
    [
        ([trial(GPU_PIP, version="1")], FAILED),
        ([trial(GPU_PIP), trial(GPU_PIP, version="1", date=EARLY)], FAILED),
        ([trial(replace(GPU_PIP, unproven="no GPU"))], UNPROVEN),
        ([trial(replace(GPU_PIP, subject="another"))], UNPROVEN),
    ],
    ids=["failed", "failed once", "not measured", "fewer claims than the matrix has"],
)
def test_nothing_but_a_whole_tier_that_passed_is_passed(found: list[Attestation], result: str) -> None:
    said = test_results.predicate(found, replace(CLAIMS, claims=(GPU_PIP,)))
    assert said[EXTENSION]["gpu"]["result"] == result and said["result"] == FAILED


def test_what_was_not_measured_is_in_no_list_of_tests() -> None:
    said = test_results.predicate([trial(replace(GPU_PIP, unproven="no GPU"))], CLAIMS)
    assert said["passedTests"] == said["warnedTests"] == said["failedTests"] == []
    assert said[EXTENSION]["gpu"]["unproven"] == ["S1 pip-on-gpu"]


@pytest.mark.parametrize("date", ["", "yesterday"])
def test_evidence_without_a_date_gives_none(date: str) -> None:
    assert "measuredOn" not in test_results.predicate([trial(GPU_PIP, date=date)], CLAIMS)[EXTENSION]["gpu"]


def test_a_true_result_has_no_faults_whatever_was_attached_later() -> None:
    first, later = trial(PIP, GPU_PIP, date=EARLY), trial(GPU_PIP)
    said = test_results.predicate([first], CLAIMS)
    assert not list(test_results.faults(said, [first, later]))


@given(st.sampled_from(("result", "measuredOn", "evidence")))
def test_a_result_that_says_more_is_a_fault(field: str) -> None:
    failed = trial(GPU_PIP, version="1")
    lies = {"result": PASSED, "measuredOn": "2026-12-01T00:00:00Z", "evidence": "sha256:" + "0" * 64}
    said: Any = test_results.predicate([failed], CLAIMS)
    said[EXTENSION]["gpu"][field] = lies[field]
    assert len(list(test_results.faults(said, [failed]))) == 1


def test_a_whole_that_is_better_than_its_parts_is_a_fault() -> None:
    failed = trial(GPU_PIP, version="1")
    said: Any = {**test_results.predicate([failed], CLAIMS), "result": PASSED}
    assert list(test_results.faults(said, [failed])) == ["it says PASSED, and not every tier passed"]
