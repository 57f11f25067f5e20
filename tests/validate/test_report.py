"""How a verdict is shown: as data, as text, as Markdown."""

import json

import pytest

from validate import report
from validate.claims import Claim, Tier
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status


def claim_verdict(
    status: Status, *, required: bool = True, reason: str = "because", **evidence: object
) -> ClaimVerdict:
    """The verdict of `pins/torch`."""
    claim = Claim(
        check="pins",
        subject="torch",
        tier=Tier.STATIC,
        probe="static.pins",
        statement="it is",
        required=required,
    )
    return ClaimVerdict(claim=claim, status=status, reason=reason, seconds=0.25, evidence=evidence)


def verdict_of(*claims: ClaimVerdict) -> Verdict:
    return Verdict(image="cu126-torch27", digest="sha256:1", claims=claims)


def test_the_data_has_the_promised_keys_and_no_others() -> None:
    verdict = verdict_of(claim_verdict(Status.PASS, files=3))

    data = json.loads(json.dumps(report.json_data(verdict)))

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
    reason = " ".join(f"word{number}" for number in range(40))
    verdict = verdict_of(claim_verdict(Status.FAIL, reason=reason))

    lines = report.text(verdict, width=width).splitlines()

    assert max(map(len, lines)) <= width
    unwrapped = " ".join(" ".join(lines).split())
    assert reason in unwrapped


OPEN_AND_HELD = verdict_of(
    claim_verdict(Status.PASS),
    claim_verdict(Status.UNPROVEN, reason="no GPU"),
    claim_verdict(Status.FAIL, reason="broken"),
)


def test_claims_that_do_not_hold_are_listed_first_and_last_and_others_are_counted() -> None:
    assert report.lines(OPEN_AND_HELD) == [
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


def test_many_unproven_claims_do_not_bury_the_failed_ones_at_the_end() -> None:
    """On a damaged image, nothing is run: 51 claims were listed above and below."""
    unproven = [claim_verdict(Status.UNPROVEN, reason="nothing was run") for _ in range(51)]
    failed = [claim_verdict(Status.FAIL, reason="broken") for _ in range(6)]

    lines = report.lines(verdict_of(*unproven, *failed))

    assert lines[-2] == f"unproven: {', '.join(['pins/torch'] * 5)} and 46 more"
    assert lines[-1] == f"failed: {', '.join(['pins/torch'] * 6)}"


def test_claims_that_hold_are_listed_on_request() -> None:
    lines = report.lines(OPEN_AND_HELD, everything=True)

    assert "PASS  pins/torch (static): because" in lines


def test_a_known_fault_is_shown_and_does_not_fail_the_image() -> None:
    verdict = verdict_of(
        claim_verdict(Status.PASS),
        claim_verdict(Status.KNOWN, required=False, reason="off by 0.5"),
    )

    lines = report.lines(verdict)

    assert "KNOWN  pins/torch (static): off by 0.5 (not required)" in lines
    assert "cu126-torch27: PASS (1 PASS, 1 KNOWN)" in lines
    assert lines[-1] == "known: pins/torch"


def test_a_known_fault_of_a_required_claim_is_no_pass() -> None:
    assert verdict_of(claim_verdict(Status.KNOWN)).overall is Status.UNPROVEN


def test_a_reason_that_several_claims_share_is_said_once_and_in_one_line_to_a_pipe() -> None:
    long_reason = "its wheel could not be had " * 9
    shared = claim_verdict(Status.UNPROVEN, reason=long_reason)

    lines = report.text(verdict_of(shared, shared)).splitlines()

    (line,) = (line for line in lines if "could not be had" in line)
    assert line.startswith("UNPROVEN  pins/torch, pins/torch (static): its wheel could not be had")


def test_a_verdict_without_claims_can_be_shown() -> None:
    assert "no claim was judged" in report.text(verdict_of())


def test_a_bar_and_a_line_break_in_a_reason_stay_in_their_cell_of_markdown() -> None:
    verdict = verdict_of(claim_verdict(Status.FAIL, reason="a | b\nc"))

    assert "a \\| b" in report.markdown(verdict)
