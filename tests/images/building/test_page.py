"""The page: self-contained, escaped, small, and with everything a person asks for."""

import dataclasses
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.building import run_files
from tests.support.html import Page
from validate.claims import Claim, Tier
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


def one(
    status: Status = Status.PASS,
    *,
    reason: str = "because",
    tier: Tier = Tier.STATIC,
    required: bool = True,
    **evidence: object,
) -> ClaimVerdict:
    claim = Claim(
        check="pins",
        subject="torch",
        tier=tier,
        probe="static.pins",
        statement="it is",
        required=required,
    )
    return ClaimVerdict(claim=claim, status=status, reason=reason, seconds=0.25, evidence=evidence)


def judged(*claims: ClaimVerdict) -> Verdict:
    return Verdict(image="cu126-torch27", digest="sha256:1f", claims=claims)


def rendered(*claims: ClaimVerdict) -> str:
    return run_files.html(judged(*claims), HOST)


def test_it_says_what_was_judged_and_where_and_folds_the_evidence_away() -> None:
    found = Page(rendered(one(files=3), one(Status.UNPROVEN, tier=Tier.GPU, reason="no GPU")))
    said = (
        "cu126-torch27|sha256:1f|H100|9.0, 85 GB|580.65.06|Docker 28.5|because|0.2 s|no GPU".split(
            "|"
        )
    )
    assert [text for text in said if text not in found.text] == found.open == []
    found = Page(rendered(one(files=3)))
    (details,) = [attributes for tag, attributes in found.elements if tag == "details"]
    assert "open" not in details and '"files": 3' in found.text and "Claim: it is." in found.text


def test_hints_are_seen_without_unfolding_and_failures_are_linked() -> None:
    failed = dataclasses.replace(one(Status.FAIL, reason="broken"), hints=(HINT,))
    text = rendered(one(), failed)
    assert text.index("Renew &amp; restart.") < text.index("</summary>", text.index("broken"))
    found = Page(text)
    assert "It is <old>." in found.text
    links = {str(attributes["href"])[1:] for tag, attributes in found.elements if tag == "a"}
    assert links == {"pins/torch"} <= {attributes.get("id") for _, attributes in found.elements}


def test_nothing_is_fetched_and_nothing_runs() -> None:
    found = Page(rendered(one(Status.FAIL)))
    assert {tag for tag, _ in found.elements}.isdisjoint(
        {"script", "link", "img", "iframe", "object"}
    )
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:|//)", rendered(one()))
    (policy,) = [
        one["content"] for tag, one in found.elements if tag == "meta" and "http-equiv" in one
    ]
    assert policy and "default-src 'none'" in policy


@given(st.text())
def test_what_a_probe_printed_stays_text(said: str) -> None:
    dangerous = f"</pre><script>{said}"
    found = Page(rendered(one(Status.FAIL, reason=dangerous, log=dangerous)))
    assert "script" not in {tag for tag, _ in found.elements} and found.open == []


def test_forty_claims_with_much_evidence_stay_below_300_kb() -> None:
    claims = [
        one(Status.FAIL, reason="r" * 300, log=["<&> \"quoted\" 'line'"] * 5000) for _ in range(40)
    ]
    text = rendered(*claims)
    assert len(text.encode()) < 300_000
    assert "more characters in evidence.json" in text


@pytest.mark.parametrize(
    ("claims", "failures", "skipped"),
    [
        *(
            ([one(status)], "1", "0")
            for status in (Status.FAIL, Status.UNPROVEN, Status.NOT_APPLICABLE)
        ),
        ([one(Status.PASS), one(Status.UNPROVEN, required=False)], "0", "1"),
        ([one(Status.PASS), one(Status.KNOWN, required=False)], "0", "1"),
        ([], "1", "0"),
    ],
)
def test_junit_fails_by_what_is_required_and_not_green(
    claims: list[ClaimVerdict], failures: str, skipped: str
) -> None:
    suite = ElementTree.fromstring(run_files.junit(judged(*claims)))
    assert (suite.attrib["failures"], suite.attrib["skipped"]) == (failures, skipped)


def test_junit_holds_what_a_crash_printed() -> None:
    crashed = one(Status.FAIL, reason="bell \a <&> \x00", probe={"log": "esc \x1b[31m red"})
    case = ElementTree.fromstring(run_files.junit(judged(crashed))).find("testcase/failure")
    assert case is not None
    assert "red" in (case.text or "")
