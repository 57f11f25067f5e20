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

CPU = replace(PIP, tier=Tier.CPU)
PASS = judged(PIP)
OTHER = replace(PIP, subject="torch")
OPTIONAL = replace(PIP, required=False)
LESS = replace(PIP, expect={**PIP.expect, "version": "25"})
WHEELS = replace(PIP, subject="wheels", probe="static.records", expect={"wheels": {}})
BUILT_HERE = replace(WHEELS, expect={"wheels": {"flash-attn": [{"digest": "x"}]}})


def by_today(*today: Claim, measured: Claim = PIP, **found: Any) -> Verdict:
    """What was measured for a claim, judged by others."""
    return gate.judge_by_claims(evidence(measured, **found), ClaimSet(image=NAME, claims=today))


STALE = by_today(PIP, measured=LESS, version="25")


STATIC, IN_CPU = [Tier.STATIC], [Tier.CPU]
CASES: dict[str, tuple[list[Verdict], list[Tier], tuple[str, ...]]] = {
    "passed": ([PASS], STATIC, ()),
    "tiers of two machines": ([PASS, judged(CPU)], [Tier.STATIC, Tier.CPU], ()),
    "by today's claims": ([by_today(PIP, CPU)], STATIC, ()),
    "a tier that nobody judged": (
        [PASS],
        [Tier.STATIC, Tier.GPU],
        ("the gpu tier was not judged",),
    ),
    "nothing": ([], STATIC, ("the static tier was not judged",)),
    "a tier of today that was not measured": (
        [by_today(PIP, CPU)],
        IN_CPU,
        ("the cpu tier was not judged",),
    ),
    "optional alone": ([judged(OPTIONAL)], STATIC, ("the static tier was not judged",)),
    "unproven": (
        [judged(replace(PIP, unproven="no wheel"))],
        STATIC,
        ("pins/pip (static) is UNPROVEN: no wheel",),
    ),
    "fewer claims than today": (
        [by_today(PIP, OTHER)],
        STATIC,
        ("than matrix.yaml today: it lacks pins/torch",),
    ),
    "required today alone": (
        [by_today(PIP, measured=OPTIONAL, version="1")],
        STATIC,
        ("pins/pip (static) is FAIL: ",),
    ),
    "by less than is expected today": (
        [STALE],
        STATIC,
        ("for other expectations than today's (version): validate",),
    ),
    "measured anew": ([STALE, by_today(PIP)], STATIC, ()),
    "failed in a tier that the gate does not ask for": (
        [judged(PIP, CPU, version="25"), PASS],
        STATIC,
        ("pins/pip (static) is FAIL", "pins/pip (cpu) is FAIL"),
    ),
    "failed in another run and tier": (
        [PASS, judged(CPU, version="25")],
        STATIC,
        ("pins/pip (cpu) is FAIL",),
    ),
    "failed, and optional in another tier": (
        [PASS, judged(replace(CPU, required=False), version="25")],
        STATIC,
        (),
    ),
    "failed, and passed elsewhere": (
        [PASS, judged(PIP, version="25")],
        STATIC,
        ("pins/pip (static) is FAIL",),
    ),
}


@pytest.mark.parametrize(("verdicts", "tiers", "refusals"), CASES.values(), ids=CASES)
def test_what_opens_the_gate(
    verdicts: list[Verdict], tiers: list[Tier], refusals: tuple[str, ...]
) -> None:
    found = gate.find_refusals(verdicts, tiers)
    assert len(found) == len(refusals)
    assert all(words in reason for words, reason in zip(refusals, found, strict=True)), found


ORIGIN = Claim(
    check="origin",
    subject="layers",
    tier=Tier.STATIC,
    probe=ORIGIN_PROBE,
    statement="x",
    unproven="by tag",
)


def test_an_unproven_origin_closes_the_gate_unless_somebody_says_why_it_may_not() -> None:
    verdict = by_today(PIP, ORIGIN)
    assert gate.find_refusals([verdict], STATIC) != ()
    assert gate.find_refusals([verdict], STATIC, origin_exception="the mirror is down") == ()
    failed = replace(verdict.claims[1], status=Status.FAIL)
    broken = replace(verdict, claims=(verdict.claims[0], failed))
    assert gate.find_refusals([broken], STATIC, origin_exception="the mirror is down") != (), (
        "a FAIL has no exception"
    )
    another = by_today(replace(PIP, unproven="no wheel"), ORIGIN)
    assert gate.find_refusals([another], STATIC, origin_exception="x") != (), (
        "it is for the origin alone"
    )


def test_what_is_recorded_of_layers_later_answers_for_the_same_evidence() -> None:
    own = replace(ORIGIN, unproven="", expect={"layers": []})
    assert (
        gate.unproven_reason(replace(own, expect={"layers": [{"layer": "torch"}]}), own, set())
        == ""
    )
    assert gate.unproven_reason(own, None, set()) != ""


def test_a_wheel_that_only_the_machine_that_built_the_image_knows_is_no_other_expectation() -> None:
    assert gate.unproven_reason(WHEELS, BUILT_HERE, {"flash-attn"}) == ""
    assert "expectations than today's (wheels)" in gate.unproven_reason(WHEELS, BUILT_HERE, set())
    assert gate.unproven_reason(
        WHEELS, replace(BUILT_HERE, expect={"wheels": 5}), {"flash-attn"}
    ), "of a stranger"


def test_what_is_recorded_after_a_run_asks_for_no_other_run() -> None:
    own = Claim(
        check="step",
        subject="eager",
        tier=Tier.GPU,
        probe="gpu.step",
        statement="x",
        expect={"rows": 8},
    )
    assert (
        gate.unproven_reason(
            replace(own, expect={"rows": 8, "baseline": {"loss": 7.0}}), own, set()
        )
        == ""
    )
    assert "(rows)" in gate.unproven_reason(replace(own, expect={"rows": 2}), own, set())
    fault = replace(
        own, check="silent-faults", probe="gpu.silent", expect={"known": False, "fault": "x"}
    )
    assert (
        gate.unproven_reason(
            replace(fault, expect={"known": True, "fault": "x; do y"}), fault, set()
        )
        == ""
    )


def test_tiers_are_read() -> None:
    assert gate.parse_tiers("static, cpu") == (Tier.STATIC, Tier.CPU)
    with pytest.raises(UserError, match="static, cpu, gpu, multigpu"):
        gate.parse_tiers("static,tpu")
