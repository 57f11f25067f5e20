"""What opens the gate: plain calls over judged evidence."""

from dataclasses import replace
from typing import Any

import pytest

from images.errors import UserError
from images.publish import gate
from tests.support.attested import NAME, PIP, evidence, judged
from validate.claims import ORIGIN_PROBE, Claim, ClaimSet, Tier
from validate.judge import Verdict
from validate.judging import Status

STATIC, CPU, GPU = Tier.STATIC, Tier.CPU, Tier.GPU
PIP_IN_CPU = replace(PIP, tier=CPU)
OPTIONAL_PIP = replace(PIP, required=False)
OPTIONAL_PIP_IN_CPU = replace(PIP_IN_CPU, required=False)
UNPROVEN_PIP = replace(PIP, unproven="no wheel")
TORCH = replace(PIP, subject="torch")
OLDER_PIP = replace(PIP, expect={**PIP.expect, "version": "25"})
"""The same claim, as it was written when pip 25 was the pin."""


def judge_today(*claims: Claim, measured: Claim = PIP, version: str = "26.3") -> Verdict:
    """Judge by today's claims what a run measured for another one, which found a version of pip."""
    run = evidence(measured, version=version)
    return gate.judge_by_claims(run, ClaimSet(image=NAME, claims=claims))


PASSED = judged(PIP)
MEASURED_FOR_OLDER_PIN = judge_today(PIP, measured=OLDER_PIP, version="25")


@pytest.mark.parametrize(
    ("verdicts", "tiers", "refusals"),
    [
        # The gate opens.
        pytest.param([PASSED], [STATIC], [], id="passed"),
        pytest.param([PASSED, judged(PIP_IN_CPU)], [STATIC, CPU], [], id="tiers of two machines"),
        pytest.param([judge_today(PIP, PIP_IN_CPU)], [STATIC], [], id="by today's claims"),
        pytest.param([MEASURED_FOR_OLDER_PIN, judge_today(PIP)], [STATIC], [], id="measured anew"),
        pytest.param(
            [PASSED, judged(OPTIONAL_PIP_IN_CPU, version="25")],
            [STATIC],
            [],
            id="failed, and optional in another tier",
        ),
        # A tier was not judged.
        pytest.param([], [STATIC], ["the static tier was not judged"], id="no run"),
        pytest.param(
            [PASSED],
            [STATIC, GPU],
            ["the gpu tier was not judged"],
            id="a tier that nobody judged",
        ),
        pytest.param(
            [judge_today(PIP, PIP_IN_CPU)],
            [CPU],
            ["the cpu tier was not judged"],
            id="a tier of today that was not measured",
        ),
        pytest.param(
            [judged(OPTIONAL_PIP)],
            [STATIC],
            ["the static tier was not judged"],
            id="only optional claims",
        ),
        # A required claim is unproven.
        pytest.param(
            [judged(UNPROVEN_PIP)],
            [STATIC],
            ["pins/pip (static) is UNPROVEN: no wheel"],
            id="unproven",
        ),
        pytest.param(
            [judge_today(PIP, TORCH)],
            [STATIC],
            ["did not measure pins/torch"],
            id="fewer claims than today",
        ),
        pytest.param(
            [MEASURED_FOR_OLDER_PIN],
            [STATIC],
            ["of the image has changed (version), so"],
            id="measured for another expectation than today's",
        ),
        # A required claim failed, in whatever run and tier.
        pytest.param(
            [judge_today(PIP, measured=OPTIONAL_PIP, version="1")],
            [STATIC],
            ["pins/pip (static) is FAIL: "],
            id="failed, and was optional then",
        ),
        pytest.param(
            [judged(PIP, PIP_IN_CPU, version="25"), PASSED],
            [STATIC],
            ["pins/pip (static) is FAIL", "pins/pip (cpu) is FAIL"],
            id="failed in a tier that the gate does not ask for",
        ),
        pytest.param(
            [PASSED, judged(PIP_IN_CPU, version="25")],
            [STATIC],
            ["pins/pip (cpu) is FAIL"],
            id="failed in another run and tier",
        ),
        pytest.param(
            [PASSED, judged(PIP, version="25")],
            [STATIC],
            ["pins/pip (static) is FAIL"],
            id="failed, and passed elsewhere",
        ),
    ],
)
def test_the_gate_opens_without_refusals(
    verdicts: list[Verdict], tiers: list[Tier], refusals: list[str]
) -> None:
    reasons = gate.find_refusals(verdicts, tiers)

    assert len(reasons) == len(refusals)
    for refusal, reason in zip(refusals, reasons, strict=True):
        assert refusal in reason


def test_of_several_runs_the_one_that_lacks_the_fewest_claims_gives_the_reasons() -> None:
    # given a run that did not test six claims, one that left two unproven, and one of another tier
    subjects = ["torch", "numpy", "pip2", "triton", "peft", "trl"]
    untested = judge_today(PIP, *(replace(PIP, subject=subject) for subject in subjects))
    unproven = judged(UNPROVEN_PIP, replace(UNPROVEN_PIP, subject="torch"))
    of_another_tier = judged(PIP_IN_CPU)

    reasons = gate.find_tier_refusals([of_another_tier, untested, unproven], STATIC)

    assert reasons == (
        "pins/pip (static) is UNPROVEN: no wheel",
        "pins/torch (static) is UNPROVEN: no wheel",
    )


# --- an unproven origin ---------------------------------------------------------------------------

ORIGIN = Claim(
    check="origin",
    subject="layers",
    tier=STATIC,
    probe=ORIGIN_PROBE,
    statement="x",
    unproven="by tag",
)
EXCEPTION = "the mirror is down"


def test_an_unproven_origin_closes_the_gate_without_an_exception() -> None:
    verdict = judge_today(PIP, ORIGIN)

    assert gate.find_refusals([verdict], [STATIC]) != ()
    assert gate.find_refusals([verdict], [STATIC], origin_exception=EXCEPTION) == ()


def test_who_lacks_the_origin_only_is_told_the_option_for_it() -> None:
    """As everybody with a matrix of his own: only a checkout records two builds."""
    policy = gate.ReleasePolicy(
        gate=[STATIC],
        alias_gate=[STATIC],
        aliases_of=lambda _name: (),
        claims_of=lambda _labels, _run: ClaimSet(image=NAME, claims=(PIP, ORIGIN)),
    )

    with pytest.raises(UserError) as error:
        policy.require_open(NAME, {}, [evidence(PIP)])

    (problem,) = error.value.problems
    assert '--origin-exception "WHY"' in problem.then
    policy.require_open(NAME, {}, [evidence(PIP)], origin_exception=EXCEPTION)


def test_a_step_for_several_reasons_is_printed_once() -> None:
    policy = gate.ReleasePolicy(
        gate=[STATIC, CPU, GPU],
        alias_gate=[STATIC],
        aliases_of=lambda _name: (),
        claims_of=lambda _labels, _run: None,
    )

    with pytest.raises(UserError) as error:
        policy.require_open(NAME, {}, [])

    of_static, of_cpu, of_gpu = error.value.problems
    assert of_static.then == ""
    assert "validate the image again" in of_cpu.then
    assert "GPU" not in of_cpu.then
    assert "the gpu tier needs a GPU" in of_gpu.then


def test_an_origin_that_failed_has_no_exception() -> None:
    verdict = judge_today(PIP, ORIGIN)
    pip_row, origin_row = verdict.claims
    failed = replace(verdict, claims=(pip_row, replace(origin_row, status=Status.FAIL)))

    assert gate.find_refusals([failed], [STATIC], origin_exception=EXCEPTION) != ()


def test_the_exception_is_for_no_other_claim_than_the_origin() -> None:
    verdict = judge_today(UNPROVEN_PIP, ORIGIN)

    assert gate.find_refusals([verdict], [STATIC], origin_exception=EXCEPTION) != ()


# --- what older evidence proves of today's claims -------------------------------------------------


def test_evidence_without_a_claim_does_not_prove_it() -> None:
    assert gate.unproven_reason(ORIGIN, None, set()) != ""


def test_evidence_of_an_origin_proves_it_by_layers_that_are_recorded_later() -> None:
    measured = replace(ORIGIN, unproven="", expect={"layers": []})
    today = replace(measured, expect={"layers": [{"layer": "torch"}]})

    assert gate.unproven_reason(today, measured, set()) == ""


RECORDS_HERE = replace(PIP, subject="wheels", probe="static.records", expect={"wheels": {}})
RECORDS_WHERE_BUILT = replace(RECORDS_HERE, expect={"wheels": {"flash-attn": [{"digest": "x"}]}})


def test_a_wheel_that_only_the_machine_of_the_build_knows_is_no_other_expectation() -> None:
    assert gate.unproven_reason(RECORDS_HERE, RECORDS_WHERE_BUILT, {"flash-attn"}) == ""


def test_a_wheel_that_every_machine_should_know_is_another_expectation() -> None:
    reason = gate.unproven_reason(RECORDS_HERE, RECORDS_WHERE_BUILT, set())

    assert "of the image has changed (wheels)" in reason


def test_an_expectation_of_another_form_is_another_expectation() -> None:
    """A stranger may have written it."""
    measured = replace(RECORDS_WHERE_BUILT, expect={"wheels": 5})

    assert gate.unproven_reason(RECORDS_HERE, measured, {"flash-attn"})


STEP = Claim(
    check="step",
    subject="eager",
    tier=GPU,
    probe="gpu.step",
    statement="x",
    expect={"rows": 8},
)
SILENT_FAULT = replace(
    STEP, check="silent-faults", probe="gpu.silent", expect={"known": False, "fault": "x"}
)


@pytest.mark.parametrize(
    ("measured", "expect_today"),
    [
        pytest.param(STEP, {"rows": 8, "baseline": {"loss": 7.0}}, id="a baseline of a step"),
        pytest.param(SILENT_FAULT, {"known": True, "fault": "x; do y"}, id="that a fault is known"),
    ],
)
def test_what_only_the_judge_reads_may_be_recorded_after_the_run(
    measured: Claim, expect_today: dict[str, Any]
) -> None:
    today = replace(measured, expect=expect_today)

    assert gate.unproven_reason(today, measured, set()) == ""


def test_what_the_probe_reads_must_be_what_it_was_then() -> None:
    today = replace(STEP, expect={"rows": 2})

    assert "(rows)" in gate.unproven_reason(today, STEP, set())


# --- options --------------------------------------------------------------------------------------


def test_tiers_are_read_from_a_list() -> None:
    assert gate.parse_tiers("static, cpu") == (STATIC, CPU)


def test_an_unknown_tier_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="static,cpu,gpu,multigpu"):
        gate.parse_tiers("static,tpu")
