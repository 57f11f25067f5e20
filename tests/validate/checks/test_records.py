"""records/locked, judged: what differs is named, what is not known is UNPROVEN and no PASS."""

from typing import Any

import pytest

from validate.checks.static import records
from validate.checks.static.records import Expected, LockedWheel
from validate.judging import Finding, Status

WHEEL = LockedWheel(version="2.7.1", records=["right", "of another platform"])
EXPECTED = Expected(wheels={"torch": WHEEL}, built=[], unknown={})


def judged(found: dict[str, Any], **expected: Any) -> Finding:
    record = {
        "path": "/site/torch-2.7.1.dist-info/RECORD",
        "version": "2.7.1",
        "digest": "right",
        "files": 9,
        **found,
    }
    return records.judge("records", {**EXPECTED, **expected}, {"records": {"torch": [record]}})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("found", "expected", "status", "words"),
    [
        ({}, {}, Status.PASS, "1 distributions (9 files)"),
        ({"digest": "of another platform"}, {}, Status.PASS, ""),
        (
            {"digest": "bad"},
            {},
            Status.FAIL,
            "RECORD is not the RECORD of the locked wheel of torch",
        ),
        (
            {"digest": "bad", "version": "2.8.0"},
            {},
            Status.FAIL,
            "no distribution of the lock is installed",
        ),
        (
            {},
            {"unknown": {"einops": "`lock` reads it"}},
            Status.UNPROVEN,
            "of einops it is not known: `lock` reads it",
        ),
        ({"digest": "bad"}, {"unknown": {"einops": "`lock` reads it"}}, Status.FAIL, "torch"),
        ({}, {"wheels": {}, "unknown": {"einops": "`lock` reads it"}}, Status.UNPROVEN, "einops"),
        (
            {},
            {"built": ["antlr4"]},
            Status.PASS,
            "built from source, with no wheel to compare with: antlr4",
        ),
    ],
)
def test_a_record_is_that_of_a_locked_wheel_or_named(
    found: dict[str, Any], expected: dict[str, Any], status: Status, words: str
) -> None:
    finding = judged(found, **expected)
    assert finding.status is status and words in finding.reason, finding.reason
