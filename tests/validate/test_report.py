"""The views of a verdict."""

from __future__ import annotations

import json

from validate import report
from validate.claims import Claim, Tier
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status


def one(status: Status, *, required: bool = True, reason: str = "because", **evidence: object) -> ClaimVerdict:
    claim = Claim(id="S1", subject="torch", tier=Tier.STATIC, probe="static.pins", statement="it is", required=required)
    return ClaimVerdict(claim=claim, status=status, reason=reason, seconds=0.25, evidence=evidence)


def verdict(*claims: ClaimVerdict) -> Verdict:
    return Verdict(image="cu126-torch27", digest="sha256:1", claims=claims)


def test_the_data_has_the_promised_keys_and_no_others() -> None:
    data = json.loads(json.dumps(report.json_data(verdict(one(Status.PASS, files=3)))))
    assert data == {
        "schema_version": 2,
        "image": "cu126-torch27",
        "digest": "sha256:1",
        "evidence_sha256": "",
        "overall": "PASS",
        "claims": [
            {
                "id": "S1",
                "tier": "static",
                "subject": "torch",
                "required": True,
                "verdict": "PASS",
                "reason": "because",
                "seconds": 0.25,
            }
        ],
    }


def test_the_table_keeps_to_its_width_and_says_all_of_the_reason() -> None:
    words = " ".join(f"word{number}" for number in range(40))
    lines = report.text(verdict(one(Status.FAIL, reason=words)), width=100).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(f"word{number}" in " ".join(lines) for number in range(40))
    assert lines[-1] == "cu126-torch27: FAIL (1 FAIL)"


def test_an_empty_verdict_can_be_shown() -> None:
    assert "no claim was judged" in report.text(verdict())


def test_markdown_cells_keep_their_bars() -> None:
    assert "a \\| b" in report.markdown(verdict(one(Status.FAIL, reason="a | b\nc")))
