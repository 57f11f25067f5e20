"""junit.xml: escaped, and with everything that a CI system needs. report.md: issues are links."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from images.building import run_files
from validate.claims import Claim, Tier
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status


def judged(
    status: Status = Status.PASS,
    *,
    reason: str = "because",
    tier: Tier = Tier.STATIC,
    required: bool = True,
    **evidence: object,
) -> ClaimVerdict:
    """Return the claim pins/torch with this verdict."""
    claim = Claim(
        check="pins",
        subject="torch",
        tier=tier,
        probe="static.pins",
        statement="it is",
        required=required,
    )
    return ClaimVerdict(claim=claim, status=status, reason=reason, seconds=0.25, evidence=evidence)


def verdict_on(*claims: ClaimVerdict) -> Verdict:
    return Verdict(image="cu126-torch27", digest="sha256:1f", claims=claims)


def junit_of(*claims: ClaimVerdict) -> ElementTree.Element:
    return ElementTree.fromstring(run_files.junit(verdict_on(*claims)))


@pytest.mark.parametrize(
    ("claims", "failures", "skipped"),
    [
        pytest.param([judged(Status.FAIL)], "1", "0", id="failed"),
        pytest.param([judged(Status.UNPROVEN)], "1", "0", id="unproven"),
        pytest.param([judged(Status.NOT_APPLICABLE)], "1", "0", id="not applicable"),
        pytest.param(
            [judged(Status.PASS), judged(Status.UNPROVEN, required=False)],
            "0",
            "1",
            id="unproven, not required",
        ),
        pytest.param(
            [judged(Status.PASS), judged(Status.KNOWN, required=False)],
            "0",
            "1",
            id="known, not required",
        ),
        pytest.param([], "1", "0", id="no claim"),
    ],
)
def test_a_required_claim_that_is_not_pass_is_a_failure_in_junit(
    claims: list[ClaimVerdict], failures: str, skipped: str
) -> None:
    suite = junit_of(*claims)

    assert suite.attrib["failures"] == failures
    assert suite.attrib["skipped"] == skipped


def test_junit_holds_what_a_crash_printed() -> None:
    """Characters that XML can't hold are replaced."""
    crashed = judged(Status.FAIL, reason="bell \a <&> \x00", probe={"log": "esc \x1b[31m red"})

    failure = junit_of(crashed).find("testcase/failure")

    assert failure is not None
    assert "red" in (failure.text or "")


def test_issues_are_links_in_the_report(tmp_path: Path) -> None:
    verdict = verdict_on(judged(Status.FAIL, reason="silently wrong (pytorch#196678)"))

    run_files.record_validation(tmp_path, Evidence(image="i", digest="", records=()), verdict)

    link = "[pytorch#196678](https://github.com/pytorch/pytorch/issues/196678)"
    assert link in (tmp_path / "report.md").read_text()
