"""The rules by which claims become a verdict: whatever is not measured is never green."""

from dataclasses import replace

import pytest

from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record, strict_json
from validate.judge import Verdict, judge
from validate.judging import Status, failed, not_applicable, passed, unproven

JUDGES = {
    "T1": lambda subject, expect, evidence: passed("fine") if evidence["ok"] else failed("bad"),
    "T2": lambda subject, expect, evidence: not_applicable("no such GPU"),
    "T3": lambda subject, expect, evidence: unproven("could not tell"),
}
RAISED = {"error": {"kind": "OSError", "message": "no libx.so"}, "environment": {"LD_PRELOAD": "y"}}


def claim(id: str = "T1", subject: str = "x", **more: object) -> Claim:  # noqa: A002
    return Claim(
        check=id, subject=subject, tier=Tier.STATIC, probe="static.t", statement="it holds", **more
    )  # type: ignore[arg-type]


def record(
    outcome: Outcome = Outcome.COMPLETED,
    *,
    measured: bool = True,
    log: str = "",
    **evidence: object,
) -> Record:
    found = (
        (Measurement(subject="x", seconds=0.5, evidence=evidence or {"ok": True}),)
        if measured
        else ()
    )
    return Record(
        probe="static.t", outcome=outcome, seconds=2.0, measurements=found, exit_code=1, log=log
    )


def verdict(*claims: Claim, records: tuple[Record, ...] = ()) -> Verdict:
    evidence = Evidence(image="i", digest="sha256:1", records=records)
    return judge(ClaimSet(image="i", claims=claims), evidence, judges=JUDGES)


@pytest.mark.parametrize(
    ("claims", "records", "overall"),
    [
        ((claim(),), (record(),), Status.PASS),
        ((claim(),), (record(ok=False),), Status.FAIL),
        ((), (), Status.UNPROVEN),
        ((claim(required=False),), (record(),), Status.UNPROVEN),
        ((claim("T9"),), (record(),), Status.UNPROVEN),  # no judge
        ((claim("T2"),), (record(),), Status.UNPROVEN),  # required, and does not apply
        ((claim(expect={"not_applicable": "no such GPU"}),), (record(),), Status.UNPROVEN),
        ((claim("T9", "y"), claim()), (record(ok=False),), Status.FAIL),
    ],
)
def test_what_is_unproven_is_never_green(
    claims: tuple[Claim, ...], records: tuple[Record, ...], overall: Status
) -> None:
    assert verdict(*claims, records=records).overall is overall


@pytest.mark.parametrize(
    ("records", "status", "words"),
    [
        ((record(),), Status.PASS, "fine"),
        ((), Status.UNPROVEN, "was not run"),
        ((record(Outcome.MISSING, measured=False),), Status.UNPROVEN, "no probe"),
        ((record(measured=False),), Status.FAIL, "found nothing to measure"),
        (
            (record(Outcome.CRASHED, measured=False, log="a\nSegmentation fault"),),
            Status.FAIL,
            "Segmentation fault",
        ),
        ((record(Outcome.TIMED_OUT, measured=False),), Status.FAIL, "did not end in 2 s"),
        ((record(Outcome.SILENT, measured=False),), Status.FAIL, "before it was done"),
        ((record(Outcome.CRASHED),), Status.UNPROVEN, "measured well (fine), but"),
        ((record(Outcome.CRASHED, ok=False),), Status.FAIL, "bad"),
        ((record(other=1),), Status.FAIL, "can't be read"),
        (
            (record(ok=True, **RAISED),),
            Status.FAIL,
            "OSError: no libx.so (LD_PRELOAD=y is set). it is known",
        ),
    ],
)
def test_what_was_not_measured_is_not_green(
    records: tuple[Record, ...], status: Status, words: str
) -> None:
    found = verdict(claim(expect={"fault": "it is known"}), records=records).claims[0]
    assert found.status is status
    assert words in found.reason


@pytest.mark.parametrize(
    ("seeds", "status"),
    [
        ((7, 7), Status.PASS),
        ((7, 8), Status.FAIL),
        ((7, None), Status.FAIL),
        ((None, 8), Status.PASS),
    ],
)
def test_an_answer_to_another_runs_inputs_is_none(
    seeds: tuple[int | None, int | None], status: Status
) -> None:
    """The run's, and the record's. Evidence of before, or of an image's own command, names none for the run."""
    run, answered = seeds
    host = {} if run is None else {"seed": run}
    evidence = Evidence(
        image="i", digest="d", records=(replace(record(), seed=answered),), host=host
    )
    (found,) = judge(ClaimSet(image="i", claims=(claim(),)), evidence, judges=JUDGES).claims
    assert found.status is status and (status is Status.PASS or "in another run" in found.reason)


def test_a_name_that_is_no_utf_8_or_moves_the_cursor_is_escaped() -> None:
    (one,) = verdict(
        claim(), records=(record(Outcome.CRASHED, measured=False, log="/x\udcff\x1b[2J"),)
    ).claims
    assert one.reason.endswith("/x\\udcff\\x1b[2J")
    assert one.evidence["probe"] == {"outcome": "crashed", "exit_code": 1, "log": "/x\udcff\x1b[2J"}
    assert strict_json({"a\udcff": ["b\udcff", "\u00fc"]}) == {"a\\udcff": ["b\\udcff", "\u00fc"]}


def test_a_reason_known_before_is_kept_and_does_not_spoil_the_image() -> None:
    optional = claim("T3", "y", required=False, unproven="no wheel could be had")
    found = verdict(claim(), optional, records=(record(),))
    assert found.overall is Status.PASS
    assert (found.claims[1].reason, found.claims[1].seconds) == ("no wheel could be had", 0.0)


def test_claims_of_other_tiers_are_left_out_and_evidence_of_another_image_is_refused() -> None:
    claims, evidence = (
        ClaimSet(image="i", claims=(claim(),)),
        Evidence(image="i", digest="d", records=(record(),)),
    )
    assert judge(claims, evidence, [Tier.GPU], judges=JUDGES).claims == ()
    with pytest.raises(ValueError, match="the evidence is"):
        judge(claims, replace(evidence, image="other"), judges=JUDGES)


def test_evidence_survives_being_recorded() -> None:
    evidence = Evidence(image="i", digest="d", records=(record(Outcome.CRASHED, log="x"),))
    assert Evidence.loads(evidence.dumps()) == evidence
