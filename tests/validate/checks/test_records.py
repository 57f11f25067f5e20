"""records/locked, judged: an installed RECORD is that of the locked wheel, or else named."""

from typing import Any

import pytest

from validate.checks.static import records
from validate.judging import Finding, Status

LOCKED_RECORDS = ["right", "of another platform"]
LOCKED_WHEEL = {"version": "2.7.1", "records": LOCKED_RECORDS}
EXPECTED: dict[str, Any] = {"wheels": {"torch": LOCKED_WHEEL}, "built": [], "unknown": {}}
INSTALLED_RECORD: dict[str, Any] = {
    "path": "/site/torch-2.7.1.dist-info/RECORD",
    "version": "2.7.1",
    "digest": "right",
    "files": 9,
}
UNKNOWN_WHEEL = {"unknown": {"einops": "`lock` reads it"}}


def judged(record: dict[str, Any] | None = None, **expected: Any) -> Finding:
    """Judge an installed RECORD of torch. What is not given is as it should be."""
    evidence: Any = {"records": {"torch": [{**INSTALLED_RECORD, **(record or {})}]}}
    expect: Any = {**EXPECTED, **expected}
    return records.judge("records", expect, evidence)


@pytest.mark.parametrize("digest", LOCKED_RECORDS)
def test_the_record_of_any_locked_wheel_passes(digest: str) -> None:
    status, reason, _ = judged({"digest": digest})

    assert status is Status.PASS
    assert "1 distributions (9 files)" in reason


def test_another_record_fails() -> None:
    status, reason, _ = judged({"digest": "bad"})

    assert status is Status.FAIL
    assert "RECORD lists other files than the wheel of torch that is locked" in reason


def test_an_environment_without_any_locked_version_fails() -> None:
    status, reason, _ = judged({"digest": "bad", "version": "2.8.0"})

    assert status is Status.FAIL
    assert "none of the lock's packages" in reason


def test_a_wheel_whose_record_is_not_known_leaves_the_claim_unproven() -> None:
    status, reason, _ = judged(**UNKNOWN_WHEEL)

    assert status is Status.UNPROVEN
    assert "were not compared with them: einops (`lock` reads it)" in reason


def test_another_record_fails_although_the_record_of_another_wheel_is_not_known() -> None:
    status, reason, _ = judged({"digest": "bad"}, **UNKNOWN_WHEEL)

    assert status is Status.FAIL
    assert "torch" in reason


def test_a_lock_of_which_no_record_is_known_is_unproven() -> None:
    status, reason, _ = judged(wheels={}, **UNKNOWN_WHEEL)

    assert status is Status.UNPROVEN
    assert "einops" in reason


def test_what_the_build_makes_is_named_as_not_compared() -> None:
    status, reason, _ = judged(built=["antlr4"])

    assert status is Status.PASS
    assert "made by the build, with no wheel to compare with: antlr4" in reason
