"""The rules by which claims become a verdict: whatever is not measured is never green."""

import math
from dataclasses import replace

import pytest

from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record, strict_json
from validate.judge import ClaimVerdict, Verdict, fit_to_image, judge, judge_record
from validate.judging import Status, failed, not_applicable, passed, unproven

JUDGES = {
    "reads-ok": lambda subject, expect, evidence: (
        passed("fine") if evidence["ok"] else failed("bad")
    ),
    "not-applicable": lambda subject, expect, evidence: not_applicable("no such GPU"),
    "unproven": lambda subject, expect, evidence: unproven("could not tell"),
    "fall": lambda subject, expect, evidence: (
        passed("it fell") if evidence["losses"][0] - evidence["losses"][1] > 0 else failed("no")
    ),
}
"""The judges of these tests, by check."""
WITHOUT_JUDGE = "unheard-of"
SECONDS_OF_PROBE, SECONDS_OF_MEASUREMENT = 2.0, 0.5
RAISED = {"error": {"kind": "OSError", "message": "no libx.so"}, "environment": {"LD_PRELOAD": "y"}}
"""The evidence of a measurement that raised, and what may explain it."""


def claim(check: str = "reads-ok", subject: str = "x", **fields: object) -> Claim:
    """A claim that the probe `static.t` measures."""
    return Claim(
        check=check,
        subject=subject,
        tier=Tier.STATIC,
        probe="static.t",
        statement="it holds",
        **fields,  # type: ignore[arg-type]
    )


def record(outcome: Outcome = Outcome.COMPLETED, *, log: str = "", **evidence: object) -> Record:
    """A record of `static.t` that measured this evidence for `x`; without any: `{"ok": True}`."""
    measurement = Measurement(
        subject="x", seconds=SECONDS_OF_MEASUREMENT, evidence=evidence or {"ok": True}
    )
    return replace(record_of_nothing(outcome, log=log), measurements=(measurement,))


def record_of_nothing(outcome: Outcome = Outcome.COMPLETED, *, log: str = "") -> Record:
    """A record of `static.t` that measured nothing."""
    return Record(probe="static.t", outcome=outcome, seconds=SECONDS_OF_PROBE, exit_code=1, log=log)


def verdict(*claims: Claim, records: tuple[Record, ...] = ()) -> Verdict:
    evidence = Evidence(image="i", digest="sha256:1", records=records)
    return judge(ClaimSet(image="i", claims=claims), evidence, judges=JUDGES)


def claim_verdict(claim: Claim, *records: Record) -> ClaimVerdict:
    (judged,) = verdict(claim, records=records).claims
    return judged


@pytest.mark.parametrize(
    ("claims", "records", "overall"),
    [
        pytest.param((claim(),), (record(),), Status.PASS, id="the claim holds"),
        pytest.param((claim(),), (record(ok=False),), Status.FAIL, id="the claim fails"),
        pytest.param((), (), Status.UNPROVEN, id="no claim"),
        pytest.param(
            (claim(required=False),), (record(),), Status.UNPROVEN, id="no required claim"
        ),
        pytest.param((claim(WITHOUT_JUDGE),), (record(),), Status.UNPROVEN, id="no judge"),
        pytest.param(
            (claim("not-applicable"),),
            (record(),),
            Status.UNPROVEN,
            id="the judge finds a required claim not applicable",
        ),
        pytest.param(
            (claim(expect={"not_applicable": "no such GPU"}),),
            (record(),),
            Status.UNPROVEN,
            id="a required claim is not applicable",
        ),
        pytest.param(
            (claim(WITHOUT_JUDGE, "y"), claim()),
            (record(ok=False),),
            Status.FAIL,
            id="one claim fails and another has no judge",
        ),
    ],
)
def test_an_image_passes_only_if_every_required_claim_holds(
    claims: tuple[Claim, ...], records: tuple[Record, ...], overall: Status
) -> None:
    assert verdict(*claims, records=records).overall is overall


@pytest.mark.parametrize(
    ("records", "status", "words"),
    [
        pytest.param((record(),), Status.PASS, "fine", id="measured"),
        pytest.param((), Status.UNPROVEN, "was not run", id="no record"),
        pytest.param(
            (record_of_nothing(Outcome.MISSING),),
            Status.UNPROVEN,
            "has no check static.t",
            id="no probe",
        ),
        pytest.param(
            (record_of_nothing(),),
            Status.FAIL,
            "recorded nothing for this claim, so it is not known whether it holds: ",
            id="the probe completed and measured nothing",
        ),
        pytest.param(
            (record_of_nothing(Outcome.CRASHED, log="a\nSegmentation fault"),),
            Status.FAIL,
            "Segmentation fault",
            id="crashed before measuring",
        ),
        pytest.param(
            (record_of_nothing(Outcome.TIMED_OUT),),
            Status.FAIL,
            "did not end in 2 s",
            id="timed out before measuring",
        ),
        pytest.param(
            (record_of_nothing(Outcome.SILENT),),
            Status.FAIL,
            "before it was done",
            id="ended silently before measuring",
        ),
        pytest.param(
            (record(Outcome.CRASHED),),
            Status.UNPROVEN,
            "what was measured is right (fine), but",
            id="crashed after measuring well",
        ),
        pytest.param(
            (record(Outcome.CRASHED, ok=False),),
            Status.FAIL,
            "bad",
            id="crashed after measuring a fault",
        ),
        pytest.param(
            (record(other=1),),
            Status.FAIL,
            "can't be read",
            id="evidence without the key that the judge reads",
        ),
        pytest.param(
            (record(ok=True, **RAISED),),
            Status.FAIL,
            "OSError: no libx.so (LD_PRELOAD=y is set). it is known",
            id="raised",
        ),
    ],
)
def test_what_was_not_measured_is_not_green(
    records: tuple[Record, ...], status: Status, words: str
) -> None:
    with_known_fault = claim(expect={"fault": "it is known"})

    judged = claim_verdict(with_known_fault, *records)

    assert judged.status is status
    assert words in judged.reason


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_is_named_where_a_judge_cannot_compute_with_it(
    figure: float,
) -> None:
    evidence = strict_json({"losses": [6.5, figure]})

    judged = claim_verdict(claim("fall"), record(**evidence))

    assert judged.status is Status.FAIL
    expected = f"what was measured can't be judged: losses is {figure}, and must be a number"
    assert judged.reason == expected


@pytest.mark.parametrize(
    ("seed_of_run", "seed_of_record", "status"),
    [
        pytest.param(7, 7, Status.PASS, id="the same seed"),
        pytest.param(7, 8, Status.FAIL, id="another seed"),
        pytest.param(7, None, Status.FAIL, id="the record has none"),
        # Evidence from before seeds were recorded, and that of an image's own `validate`.
        pytest.param(None, 8, Status.PASS, id="the run has none"),
    ],
)
def test_a_record_with_another_seed_than_the_run_fails(
    seed_of_run: int | None, seed_of_record: int | None, status: Status
) -> None:
    evidence = Evidence(
        image="i",
        digest="d",
        records=(replace(record(), seed=seed_of_record),),
        host={} if seed_of_run is None else {"seed": seed_of_run},
    )

    (judged,) = judge(ClaimSet(image="i", claims=(claim(),)), evidence, judges=JUDGES).claims

    assert judged.status is status
    assert status is Status.PASS or "from another run" in judged.reason


@pytest.mark.parametrize(
    ("outcome", "failed_subjects"),
    [
        # `y` may be measured in another container.
        pytest.param(Outcome.COMPLETED, ["x"], id="what it measured"),
        pytest.param(Outcome.CRASHED, ["x", "y"], id="all if it crashed"),
    ],
)
def test_a_record_alone_is_judged_for_the_claims_of_its_probe(
    outcome: Outcome, failed_subjects: list[str]
) -> None:
    pins = replace(claim("pins"), probe="static.pins")
    claims = [pins, replace(pins, subject="y"), replace(pins, probe="static.records")]

    judged = judge_record(claims, replace(record(outcome, **RAISED), probe="static.pins"))

    assert [verdict.claim.subject for verdict in judged] == failed_subjects
    assert {verdict.status for verdict in judged} == {Status.FAIL}


def test_a_container_that_crashed_is_no_failure_of_the_claims_of_other_containers() -> None:
    """Each claim of cpu.home is measured in a container of its own."""
    claims = [
        replace(claim("users", subject), probe="cpu.home") for subject in ("own-folder", "volume")
    ]

    judged = judge_record(claims, replace(record_of_nothing(Outcome.CRASHED), probe="cpu.home"))

    assert judged == []


def test_only_the_whole_word_name_is_replaced_by_the_images_name() -> None:
    step = "take NCCL_SOCKET_IFNAME out, then `nox -s build -- NAME`"

    fitted = fit_to_image(step, "cu126-torch25")

    assert fitted == "take NCCL_SOCKET_IFNAME out, then `nox -s build -- cu126-torch25`"


BROKEN_UTF_8 = "\udcff"
"""How Python holds the byte 0xff of a file's name."""
CLEARS_THE_SCREEN = "\x1b[2J"


def test_a_reason_is_escaped_where_it_is_no_utf_8_or_moves_the_cursor() -> None:
    log = f"/x{BROKEN_UTF_8}{CLEARS_THE_SCREEN}"

    judged = claim_verdict(claim(), record_of_nothing(Outcome.CRASHED, log=log))

    assert judged.reason.endswith("/x\\udcff\\x1b[2J")
    assert judged.evidence["probe"] == {"outcome": "crashed", "exit_code": 1, "log": log}


def test_evidence_is_escaped_where_it_is_no_utf_8() -> None:
    evidence = {f"a{BROKEN_UTF_8}": [f"b{BROKEN_UTF_8}", "ü"]}

    assert strict_json(evidence) == {"a\\udcff": ["b\\udcff", "ü"]}


def test_a_reason_known_before_is_kept_and_does_not_spoil_the_image() -> None:
    optional = claim("unproven", "y", required=False, unproven="no wheel could be had")

    judged = verdict(claim(), optional, records=(record(),))

    assert judged.overall is Status.PASS
    assert judged.claims[1].reason == "no wheel could be had"
    assert judged.claims[1].seconds == 0.0


def test_claims_of_other_tiers_are_left_out() -> None:
    claims = ClaimSet(image="i", claims=(claim(),))
    evidence = Evidence(image="i", digest="d", records=(record(),))

    assert judge(claims, evidence, [Tier.GPU], judges=JUDGES).claims == ()


def test_evidence_of_another_image_is_refused() -> None:
    claims = ClaimSet(image="i", claims=(claim(),))
    evidence = Evidence(image="other", digest="d", records=(record(),))

    with pytest.raises(ValueError, match="the evidence is"):
        judge(claims, evidence, judges=JUDGES)


@pytest.mark.parametrize(
    ("records", "seconds"),
    [
        pytest.param((record(),), SECONDS_OF_MEASUREMENT, id="the measurement's"),
        pytest.param((record_of_nothing(),), SECONDS_OF_PROBE, id="the probe's, if none"),
        pytest.param((), 0.0, id="none, if it was not run"),
    ],
)
def test_a_claim_has_the_time_that_was_spent_on_it(
    records: tuple[Record, ...], seconds: float
) -> None:
    assert claim_verdict(claim(), *records).seconds == seconds


def test_evidence_survives_being_recorded() -> None:
    evidence = Evidence(image="i", digest="d", records=(record(Outcome.CRASHED, log="x"),))

    assert Evidence.loads(evidence.dumps()) == evidence
