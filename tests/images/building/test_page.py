"""report.html and junit.xml: self-contained, escaped, small, and with everything a person needs."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.building import run_files
from tests.support.html import Page
from validate.claims import Claim, Tier
from validate.evidence import Evidence
from validate.hints import Hint
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

HOST = {
    "engine": "28.5",
    "cpus": 16,
    "driver": "580.65.06",
    "gpus": [{"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "memory": 85_000_000_000}],
}
HINT = Hint(id="x", pattern="x", cause="It is <old>.", fix="Renew & restart.", source="a/b#1")
LOADING_TAGS = {"script", "link", "img", "iframe", "object"}


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


def html_of(*claims: ClaimVerdict) -> str:
    return run_files.html(verdict_on(*claims), HOST)


def page_of(*claims: ClaimVerdict) -> Page:
    """Return the page as a browser reads it. Every element must be closed."""
    page = Page(html_of(*claims))
    assert page.open == []
    return page


def tags_of(page: Page) -> set[str]:
    return {tag for tag, _attributes in page.elements}


def junit_of(*claims: ClaimVerdict) -> ElementTree.Element:
    return ElementTree.fromstring(run_files.junit(verdict_on(*claims)))


# --- report.html ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "cu126-torch27",
        "sha256:1f",
        "H100",
        "9.0, 85 GB",
        "580.65.06",
        "Docker 28.5",
        "because",
        "0.2 s",
        "no GPU",
    ],
)
def test_the_page_says_what_was_judged_and_where(text: str) -> None:
    unproven = judged(Status.UNPROVEN, tier=Tier.GPU, reason="no GPU")

    page = page_of(judged(files=3), unproven)

    assert text in page.text


def test_the_page_folds_the_evidence_away() -> None:
    page = page_of(judged(files=3))

    (details,) = [attributes for tag, attributes in page.elements if tag == "details"]
    assert "open" not in details
    assert '"files": 3' in page.text
    assert "Claim: it is." in page.text


def test_hints_are_seen_without_unfolding() -> None:
    failed = replace(judged(Status.FAIL, reason="broken"), hints=(HINT,))

    text = html_of(judged(), failed)

    end_of_summary = text.index("</summary>", text.index("broken"))
    assert text.index("Renew &amp; restart.") < end_of_summary
    assert "It is <old>." in Page(text).text


def test_failures_are_linked() -> None:
    page = page_of(judged(), judged(Status.FAIL))

    links = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert links == {"#pins/torch"}
    assert "pins/torch" in page.ids


def test_issues_are_links_in_both_reports(tmp_path: Path) -> None:
    reason = "silently wrong: a gradient (pytorch#196678)"
    failed = replace(judged(Status.FAIL, reason=reason), hints=(HINT,))
    address = "https://github.com/pytorch/pytorch/issues/196678"

    run_files.record_validation(
        tmp_path, Evidence(image="i", digest="", records=()), verdict_on(failed)
    )

    links = {attributes["href"] for tag, attributes in page_of(failed).elements if tag == "a"}
    assert links == {"#pins/torch", address, "https://github.com/a/b/issues/1"}
    assert f"[pytorch#196678]({address})" in (tmp_path / "report.md").read_text()


def test_the_page_fetches_nothing_and_runs_nothing() -> None:
    page = page_of(judged(Status.FAIL))

    assert not tags_of(page) & LOADING_TAGS
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:|//)", html_of(judged()))
    policies = [
        attributes["content"]
        for tag, attributes in page.elements
        if tag == "meta" and "http-equiv" in attributes
    ]
    assert len(policies) == 1
    assert "default-src 'none'" in policies[0]


@given(st.text())
def test_what_a_probe_printed_stays_text(printed: str) -> None:
    hostile = f"</pre><script>{printed}"

    page = page_of(judged(Status.FAIL, reason=hostile, log=hostile))

    assert "script" not in tags_of(page)


def test_forty_claims_with_much_evidence_stay_below_300_kb() -> None:
    log = ["<&> \"quoted\" 'line'"] * 5000
    claims = [judged(Status.FAIL, reason="r" * 300, log=log) for _ in range(40)]

    text = html_of(*claims)

    assert len(text.encode()) < 300_000
    assert "more characters in evidence.json" in text


# --- junit.xml ------------------------------------------------------------------------------------


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
