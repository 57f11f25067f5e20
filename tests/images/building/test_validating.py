"""What an image is held to, and what it must have shown before it gets its name."""

from dataclasses import replace

import pytest

from images.building import naming, validating
from images.errors import UserError
from tests.support.fleet_records import NAME, claim, claims
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import judge
from validate.judging import Finding, Status

STATIC = claim("pip", probe="static.pins")
CPU = claim("torch", number="imports", tier=Tier.CPU, probe="cpu.imports")
BOTH = (Tier.STATIC, Tier.CPU)


def record(probe: str, subject: str, outcome: Outcome = Outcome.COMPLETED) -> Record:
    measured = Measurement(subject=subject, seconds=0.1, evidence={})
    return Record(probe=probe, outcome=outcome, seconds=0.1, measurements=(measured,), exit_code=0)


GOOD = (record("static.pins", "pip"), record("cpu.imports", "torch"))


def withheld(
    *records: Record,
    oom: bool = False,
    more: tuple[Claim, ...] = (),
    tiers: tuple[Tier, ...] = BOTH,
    status: str = "",
    **host: object,
) -> str:
    """Why it gets no name by these records. Who looked is asked here, not at what: each judge finds the same."""
    held_to = claims(STATIC, CPU, *more)
    evidence = Evidence(
        image=NAME,
        digest="sha256:1",
        records=records,
        host={"out_of_memory": oom, **host},
        claims=held_to.claims,
    )
    found = Finding(Status[status or "PASS"], "it was looked at")
    verdict = judge(
        held_to, evidence, tiers, judges=dict.fromkeys(("pins", "imports"), lambda *_: found)
    )
    return naming.why_withheld(verdict, evidence, tiers)


def test_no_image_gets_a_name_for_what_a_suite_did_not_come_to() -> None:
    """A suite that is killed for its memory leaves records of the probes before it."""
    assert withheld(GOOD[0]) == "nobody measured imports/torch"
    assert withheld(GOOD[0], oom=True).endswith(
        "imports/torch: a container of the validation run ran out of memory"
    )
    assert (
        withheld(GOOD[0], record("cpu.imports", "torch", Outcome.MISSING))
        == "nobody measured imports/torch"
    )


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.SILENT])
def test_a_probe_that_measured_well_and_then_ended_badly_gives_no_name(outcome: Outcome) -> None:
    assert (
        withheld(GOOD[0], record("cpu.imports", "torch", outcome))
        == "cpu.imports did not run to the end"
    )


def test_no_image_gets_a_name_on_a_machine_that_does_not_run_its_programs() -> None:
    assert (
        withheld(*GOOD, other_processor="programs for arm64 do not run here")
        == "programs for arm64 do not run here"
    )


def test_what_a_claim_says_of_itself_or_a_probe_saw_is_no_gap() -> None:
    absent = claim(
        "flash-attn",
        number="imports",
        tier=Tier.CPU,
        probe="cpu.absent",
        unproven="no wheel is here",
    )
    gpu = claim("fp8", number="imports", tier=Tier.GPU, probe="gpu.fp8")
    assert withheld(*GOOD, more=(absent, gpu)) == ""
    assert withheld(*GOOD, status="UNPROVEN") == "", "a probe looked, and a judge could not tell"


def test_a_claim_that_is_not_required_is_told_and_withholds_no_name() -> None:
    told = replace(
        claim("adapters", number="framework", tier=Tier.CPU, probe="cpu.profile_trl_vllm"),
        required=False,
    )
    assert withheld(*GOOD, record("cpu.profile_trl_vllm", "adapters"), more=(told,)) == ""


def test_a_failed_admission_claim_withholds_the_name_though_it_is_not_required() -> None:
    broken = replace(claim("locked", number="records", probe="static.records"), required=False)
    not_run = replace(CPU, unproven="nothing of the image was run: records/locked failed")
    held_to = claims(STATIC, broken, not_run)
    records = (GOOD[0], record("static.records", "locked"))
    evidence = Evidence(
        image=NAME, digest="sha256:1", records=records, host={}, claims=held_to.claims
    )
    judges = {
        "pins": lambda *_: Finding(Status.PASS, "good"),
        "records": lambda *_: Finding(Status.FAIL, "bad"),
    }
    verdict = judge(held_to, evidence, BOTH, judges=judges)
    assert naming.why_withheld(verdict, evidence, BOTH) == "1 claim failed (records/locked)"


def test_a_failure_and_a_tier_that_was_left_out_are_told_first() -> None:
    assert withheld(*GOOD, status="FAIL") == "2 claims failed (pins/pip, imports/torch)"
    assert withheld(GOOD[0], tiers=(Tier.STATIC,)) == "the cpu tier was left out"


CLAIMS = ClaimSet(
    image="a",
    claims=tuple(
        Claim(check=number, subject=subject, tier=tier, probe="cpu.examples", statement="")
        for number, subject, tier in (
            ("imports", "torch", Tier.CPU),
            ("multigpu-examples", "axolotl-zero2", Tier.MULTIGPU),
            ("multigpu-examples", "axolotl-zero2-offload", Tier.MULTIGPU),
            ("multigpu-examples", "axolotl-fsdp2", Tier.MULTIGPU),
        )
    ),
)


def subjects(texts: list[str], tiers: tuple[Tier, ...] = tuple(Tier)) -> list[str]:
    return [
        claim.subject.removeprefix("axolotl-")
        for claim in validating.choose_claims(CLAIMS, tiers, texts).claims
    ]


def test_claims_are_chosen_by_name_by_check_and_by_pattern() -> None:
    assert subjects(["multigpu-examples"]) == ["zero2", "zero2-offload", "fsdp2"]
    assert subjects(["multigpu-examples/axolotl-zero2"]) == ["zero2"]
    assert subjects(["multigpu-examples/axolotl-zero2*"]) == ["zero2", "zero2-offload"]
    assert subjects(["torch"]) == ["torch"]
    assert subjects(["*/torch", "multigpu-examples/axolotl-fsdp2"]) == ["torch", "fsdp2"]


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("import/torch", "imports/torch"),
        ("imports/", "imports"),
        ("zero2", "multigpu-examples/axolotl-zero2"),
        ("S5 bitsandbytes", "imports, multigpu-examples"),
    ],
)
def test_an_unknown_name_is_refused_with_what_is_near(text: str, near: str) -> None:
    with pytest.raises(UserError) as refused:
        subjects([text])
    (problem,) = refused.value.problems
    assert problem.where == f"--claim {text!r}" and near in problem.then


def test_a_name_of_no_claim_of_these_tiers_is_refused_with_what_is_there() -> None:
    with pytest.raises(UserError) as refused:
        subjects(["multigpu-examples", "attention"], (Tier.CPU,))
    assert [problem.where for problem in refused.value.problems] == [
        "--claim 'multigpu-examples'",
        "--claim 'attention'",
    ]
    assert all(
        "imports" in problem.then and "cpu" in problem.cause for problem in refused.value.problems
    )
