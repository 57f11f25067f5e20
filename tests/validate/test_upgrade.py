"""Evidence of schema version 1 is read as version 2, and every claim keeps its verdict."""

import json

import pytest

from images.site import records
from tests.support import recorded
from validate import upgrade
from validate.evidence import Evidence
from validate.judge import judge

KEPT = sorted(run_id for run_id, line in recorded.lines().items() if line.kept)


@pytest.mark.parametrize("run_id", KEPT)
def test_a_recorded_run_keeps_its_verdicts(run_id: str) -> None:
    """The line was written when the run was judged; `judged_again` refuses one that differs in any claim."""
    line, text = recorded.lines()[run_id], recorded.text(run_id)
    verdict = records.judged_again(line, text.encode())
    assert sorted(line.each()) == sorted(
        (one.claim.tier, one.status, one.claim.id, one.claim.subject) for one in verdict.claims
    )


@pytest.mark.parametrize("run_id", KEPT)
def test_what_was_upgraded_and_written_again_is_judged_alike(run_id: str) -> None:
    old = recorded.evidence(run_id)
    new = Evidence.loads(old.dumps())
    assert json.loads(old.dumps())["schema_version"] == upgrade.SCHEMA_VERSION
    assert [(one.status, one.reason) for one in judge(new.claim_set, new).claims] == [
        (one.status, one.reason) for one in judge(old.claim_set, old).claims
    ]


def test_runs_of_version_1_are_kept() -> None:
    assert any("schema_version" not in json.loads(recorded.text(run_id)) for run_id in KEPT)


def test_the_three_kinds_of_device_code_expect_what_they_need_and_no_more() -> None:
    old = {"files": ["a"], "also": ["b"], "archs": {"90": "cubin"}, "by_design": [], "holes": []}
    new = [_expect({**old, "depth": depth, "nvidia": True, "by_design_of": {}}) for depth in ("kernel", "file")]
    assert [set(one) for one in new] == [
        {"kind", "files", "also", "archs", "known_gaps", "by_design"},
        {"kind", "files", "also", "archs", "known_gaps"},
    ]
    pruned = _expect({**old, "depth": "surplus", "nvidia": True})
    assert pruned == {"kind": "pruned", "files": ["b"], "archs": old["archs"], "nvidia": True, "by_design_of": {}}


def _expect(expect: object) -> object:
    claim = {"id": "S5", "subject": "torch", "probe": "static.devicecode", "promise": "-", "expect": expect}
    return upgrade.evidence({"claims": [claim], "records": []})["claims"][0]["expect"]


def test_version_2_stays_as_it_is_and_a_later_one_is_refused() -> None:
    current = {"schema_version": 2, "claims": [], "records": []}
    assert upgrade.evidence(current) == current
    with pytest.raises(ValueError, match="schema version 3"):
        upgrade.evidence({**current, "schema_version": 3})


def test_a_verdict_of_version_1_names_its_claims_as_version_2_does() -> None:
    rows = [
        {"id": "C8", "subject": "unknown user"},
        {"id": "S5", "subject": "sliced"},
        {"id": "S1", "subject": "torch"},
    ]
    assert [row["subject"] for row in upgrade.verdict({"claims": rows})["claims"]] == [
        "arbitrary UID",
        "pruned",
        "torch",
    ]
