"""What opens the gate: plain calls over judged evidence."""

from dataclasses import replace

import pytest

from images.errors import UserError
from images.publish import gate
from tests.support.attested import NAME, PIP, judged
from validate.claims import ClaimSet, Tier
from validate.judging import Status

CPU = replace(PIP, tier=Tier.CPU)
PASS = judged(PIP)
CLAIMS = ClaimSet(image=NAME, claims=(PIP,))


def test_the_judge_tells_the_two_apart() -> None:
    assert PASS.overall is Status.PASS
    assert judged(PIP, version="25").overall is Status.FAIL


def test_a_tier_that_passed_opens_the_gate() -> None:
    assert gate.refusals([PASS], [Tier.STATIC], CLAIMS) == ()
    assert gate.refusals([PASS], [Tier.STATIC], None) == ()


def test_a_tier_nobody_judged_keeps_it_shut() -> None:
    assert gate.refusals([PASS], [Tier.STATIC, Tier.GPU], CLAIMS) == ("the gpu tier was not judged",)
    assert gate.refusals([], [Tier.STATIC], CLAIMS) == ("the static tier was not judged",)


def test_a_tier_without_required_claims_was_not_judged() -> None:
    assert gate.refusals([judged(replace(PIP, required=False))], [Tier.STATIC], None) == (
        "the static tier was not judged",
    )


def test_unproven_is_not_pass() -> None:
    (reason,) = gate.refusals([judged(replace(PIP, unproven="no wheel"))], [Tier.STATIC], None)
    assert reason == "S1 pip (static) is UNPROVEN: no wheel"


def test_machines_may_share_the_tiers_between_them() -> None:
    assert gate.refusals([PASS, judged(CPU)], [Tier.STATIC, Tier.CPU], None) == ()


def test_a_failure_is_not_made_up_for_by_another_verdict() -> None:
    reasons = gate.refusals([PASS, judged(PIP, version="25")], [Tier.STATIC], CLAIMS)
    assert len(reasons) == 1 and reasons[0].startswith("S1 pip (static) is FAIL")


def test_a_verdict_on_fewer_claims_than_today_is_not_enough() -> None:
    more = ClaimSet(image=NAME, claims=(PIP, replace(PIP, subject="torch")))
    assert gate.refusals([PASS], [Tier.STATIC], more) == (
        "the attestation has fewer claims than matrix.yaml today: it lacks S1 torch",
    )


def test_a_claim_that_was_optional_in_the_attestation_but_is_required_today_is_lacking() -> None:
    (row,) = PASS.claims
    optional = replace(row, claim=replace(PIP, required=False))
    verdict = replace(PASS, claims=(replace(row, claim=replace(PIP, subject="wheel")), optional))
    (reason,) = gate.refusals([verdict], [Tier.STATIC], CLAIMS)
    assert reason.endswith("it lacks S1 pip")


def test_tiers_are_read() -> None:
    assert gate.parse_tiers("static, cpu") == (Tier.STATIC, Tier.CPU)
    with pytest.raises(UserError, match="static, cpu, gpu, multigpu"):
        gate.parse_tiers("static,tpu")


def test_what_an_emulator_ran_opens_the_gate_for_what_reads_files_alone() -> None:
    static, cpu = (
        replace(found, claims=tuple(replace(one, emulated="qemu-user 7.2") for one in found.claims))
        for found in (PASS, judged(CPU))
    )
    assert gate.refusals([static], [Tier.STATIC], CLAIMS) == ()
    assert gate.refusals([cpu], [Tier.CPU], None) == (
        "the cpu tier was measured under qemu-user 7.2, and not on the processor that it is for",
    )
    assert gate.refusals([cpu, judged(CPU)], [Tier.CPU], None) == ()
