"""hygiene: leftovers of a build, credentials in files, and the home, judged from evidence."""

from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.judging import fails, judge_claim, spoiled_by, wrong
from tests.support.site_packages import static_claim
from validate.judging import Finding, Status

HEALTHY: dict[str, Any] = cases(__file__, "healthy")
EXPECT: dict[str, Any] = cases(__file__, "expected")
"""Subject of a claim -> what it expects."""


def judged(subject: str, **measured: Any) -> Finding:
    """Judge evidence. What is not given is well."""
    claim = static_claim("hygiene", subject, "hygiene", **EXPECT[subject])
    return judge_claim(claim, {**HEALTHY, **measured})


@pytest.mark.parametrize("subject", EXPECT)
def test_a_healthy_image_passes(subject: str) -> None:
    assert judged(subject).status is Status.PASS


@pytest.mark.parametrize(
    ("subject", "status"),
    [
        ("leftovers", Status.UNPROVEN),
        ("secrets", Status.UNPROVEN),
        # The home is looked at by itself.
        ("home", Status.PASS),
    ],
)
def test_a_folder_that_can_not_be_listed_leaves_unproven_what_may_lie_in_it(
    subject: str, status: Status
) -> None:
    assert judged(subject, unreadable=["/root"]).status is status


@pytest.mark.parametrize(("subject", "words", "changes"), wrong("hygiene"))
def test_a_leftover_a_credential_and_a_closed_home_fail(
    subject: str, words: str, changes: dict[str, Any]
) -> None:
    fails(judged(subject, **spoiled_by(HEALTHY, changes)), words)
