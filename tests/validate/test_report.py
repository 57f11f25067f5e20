"""The views of a verdict."""

import json

import pytest

from validate import report
from validate.claims import Claim, Tier
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status


def one(
    status: Status, *, required: bool = True, reason: str = "because", **evidence: object
) -> ClaimVerdict:
    claim = Claim(
        check="pins",
        subject="torch",
        tier=Tier.STATIC,
        probe="static.pins",
        statement="it is",
        required=required,
    )
    return ClaimVerdict(claim=claim, status=status, reason=reason, seconds=0.25, evidence=evidence)


def verdict(*claims: ClaimVerdict) -> Verdict:
    return Verdict(image="cu126-torch27", digest="sha256:1", claims=claims)


def test_the_data_has_the_promised_keys_and_no_others() -> None:
    data = json.loads(json.dumps(report.json_data(verdict(one(Status.PASS, files=3)))))
    assert data == {
        "schema_version": 3,
        "image": "cu126-torch27",
        "digest": "sha256:1",
        "evidence_sha256": "",
        "overall": "PASS",
        "claims": [
            {
                "check": "pins",
                "tier": "static",
                "subject": "torch",
                "required": True,
                "verdict": "PASS",
                "reason": "because",
                "seconds": 0.25,
            }
        ],
    }


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_lines_keep_to_their_width_and_say_all_of_the_reason(width: int) -> None:
    words = " ".join(f"word{number}" for number in range(40))
    lines = report.text(verdict(one(Status.FAIL, reason=words)), width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert words in " ".join(" ".join(lines).split())


def test_what_is_open_is_said_first_and_last_and_what_holds_is_counted() -> None:
    judged = verdict(
        one(Status.PASS), one(Status.UNPROVEN, reason="no GPU"), one(Status.FAIL, reason="broken")
    )
    assert report.lines(judged) == [
        "cu126-torch27  sha256:1  FAIL",
        "FAIL  pins/torch (static): broken",
        "UNPROVEN  pins/torch (static): no GPU",
        "PASS  1 static (--all shows them)",
        "",
        "cu126-torch27: FAIL (1 PASS, 1 FAIL, 1 UNPROVEN)",
        "not run: cpu, gpu, multigpu",
        "unproven: pins/torch",
        "failed: pins/torch",
    ]
    assert "PASS  pins/torch (static): because" in report.lines(judged, everything=True)


def test_a_known_fault_is_shown_and_is_neither_a_failure_nor_a_pass() -> None:
    judged = verdict(one(Status.PASS), one(Status.KNOWN, required=False, reason="off by 0.5"))
    lines = report.lines(judged)
    assert "KNOWN  pins/torch (static): off by 0.5 (not required)" in lines
    assert "cu126-torch27: PASS (1 PASS, 1 KNOWN)" in lines
    assert lines[-1] == "known: pins/torch"
    assert verdict(one(Status.KNOWN)).overall is Status.UNPROVEN, (
        "even where a claim were required, no PASS"
    )


def test_a_reason_that_several_claims_share_is_said_once_and_in_one_line_to_a_pipe() -> None:
    judged = verdict(*[one(Status.UNPROVEN, reason="its wheel could not be had " * 9)] * 2)
    (said,) = (line for line in report.text(judged).splitlines() if "could not be had" in line)
    assert said.startswith("UNPROVEN  pins/torch, pins/torch (static): its wheel could not be had")


def test_an_empty_verdict_and_bars_in_markdown_can_be_shown() -> None:
    assert "no claim was judged" in report.text(verdict())
    assert "a \\| b" in report.markdown(verdict(one(Status.FAIL, reason="a | b\nc")))
