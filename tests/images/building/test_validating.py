"""When an image gets its name, and which claims the option --claim chooses."""

from dataclasses import replace

import pytest

from images.building import naming, validating
from images.errors import UserError
from tests.support.fleet_records import NAME, claim, claims
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import judge
from validate.judging import Finding, Status

STATIC_CLAIM = claim("pip", probe="static.pins")
CPU_CLAIM = claim("torch", check="imports", tier=Tier.CPU, probe="cpu.imports")
STATIC_AND_CPU = (Tier.STATIC, Tier.CPU)


def record_of(probe: str, subject: str, outcome: Outcome = Outcome.COMPLETED) -> Record:
    measurement = Measurement(subject=subject, seconds=0.1, evidence={})
    return Record(
        probe=probe, outcome=outcome, seconds=0.1, measurements=(measurement,), exit_code=0
    )


STATIC_RECORD = record_of("static.pins", "pip")
CPU_RECORD = record_of("cpu.imports", "torch")
BOTH_RECORDS = (STATIC_RECORD, CPU_RECORD)


def why_withheld(
    *records: Record,
    further_claims: tuple[Claim, ...] = (),
    tiers: tuple[Tier, ...] = STATIC_AND_CPU,
    status: Status = Status.PASS,
    failed_check: str = "",
    **host: object,
) -> str:
    """Return why an image with two claims gets no name by these records.

    Every judge answers `status`: which probes ran is the question here, and not what they measured.
    Only the judge of `failed_check` answers FAIL. `host`: facts about the machine.
    """
    image_claims = claims(STATIC_CLAIM, CPU_CLAIM, *further_claims)
    evidence = Evidence(
        image=NAME,
        digest="sha256:1",
        records=records,
        host=host,  # type: ignore[arg-type]
        claims=image_claims.claims,
    )
    finding = Finding(status, "it was looked at")
    judges = dict.fromkeys(("pins", "imports"), lambda *_: finding)
    judges[failed_check] = lambda *_: Finding(Status.FAIL, "bad")
    verdict = judge(image_claims, evidence, tiers, judges=judges)
    return naming.why_withheld(verdict, evidence, tiers)


# --- names ----------------------------------------------------------------------------------------


def test_an_image_whose_claims_were_all_measured_gets_its_name() -> None:
    assert why_withheld(*BOTH_RECORDS) == ""


def test_a_probe_that_was_not_run_withholds_the_name() -> None:
    assert why_withheld(STATIC_RECORD) == "nobody measured imports/torch"


def test_a_suite_that_was_killed_for_its_memory_withholds_the_name() -> None:
    """It leaves the records of the probes before it."""
    reason = why_withheld(STATIC_RECORD, out_of_memory=True)

    assert reason.endswith("imports/torch: a container of the validation run ran out of memory")


def test_a_probe_that_the_suite_does_not_have_withholds_the_name() -> None:
    missing = record_of("cpu.imports", "torch", Outcome.MISSING)

    assert why_withheld(STATIC_RECORD, missing) == "nobody measured imports/torch"


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.SILENT])
def test_a_probe_that_measured_well_and_then_ended_badly_withholds_the_name(
    outcome: Outcome,
) -> None:
    ended_badly = record_of("cpu.imports", "torch", outcome)

    assert why_withheld(STATIC_RECORD, ended_badly) == "cpu.imports did not run to the end"


def test_a_machine_that_does_not_run_the_images_programs_withholds_the_name() -> None:
    reason = "programs for arm64 do not run here"

    assert why_withheld(*BOTH_RECORDS, other_processor=reason) == reason


@pytest.mark.parametrize(
    ("status", "words"),
    [
        pytest.param(Status.FAIL, "mend what they name, then build again", id="a claim failed"),
        pytest.param(Status.PASS, "build again, without `--tier`", id="it was not all measured"),
    ],
)
def test_the_next_step_blames_the_image_only_if_a_claim_failed(status: Status, words: str) -> None:
    image_claims = claims(STATIC_CLAIM)
    evidence = Evidence(image=NAME, digest="sha256:1", records=(STATIC_RECORD,))
    judges = {"pins": lambda *_: Finding(status, "it was looked at")}
    verdict = judge(image_claims, evidence, judges=judges)

    assert words in naming.next_step(verdict, "report.md", "build again")


def test_a_claim_that_is_known_to_be_unproven_does_not_withhold_the_name() -> None:
    unproven = claim(
        "flash-attn",
        check="imports",
        tier=Tier.CPU,
        probe="cpu.absent",
        unproven="no wheel is here",
    )

    assert why_withheld(*BOTH_RECORDS, further_claims=(unproven,)) == ""


def test_a_claim_of_a_tier_that_was_not_asked_for_does_not_withhold_the_name() -> None:
    gpu_claim = claim("fp8", check="imports", tier=Tier.GPU, probe="gpu.fp8")

    assert why_withheld(*BOTH_RECORDS, further_claims=(gpu_claim,)) == ""


def test_a_judge_that_could_not_tell_does_not_withhold_the_name_if_the_probe_ran() -> None:
    assert why_withheld(*BOTH_RECORDS, status=Status.UNPROVEN) == ""


@pytest.mark.parametrize(
    "failed_check",
    [pytest.param("", id="without a judge"), pytest.param("framework", id="failed")],
)
def test_a_claim_that_is_not_required_does_not_withhold_the_name(failed_check: str) -> None:
    probe = "cpu.profile_trl_vllm"
    not_required = replace(
        claim("adapters", check="framework", tier=Tier.CPU, probe=probe), required=False
    )

    reason = why_withheld(
        *BOTH_RECORDS,
        record_of(probe, "adapters"),
        further_claims=(not_required,),
        failed_check=failed_check,
    )

    assert reason == ""


def test_failed_claims_withhold_the_name() -> None:
    reason = why_withheld(*BOTH_RECORDS, status=Status.FAIL)

    assert reason == "2 claims failed (pins/pip, imports/torch)"


def test_a_tier_that_was_left_out_withholds_the_name() -> None:
    assert why_withheld(STATIC_RECORD, tiers=(Tier.STATIC,)) == "the cpu tier was left out"


def test_a_failed_admission_claim_withholds_the_name_though_it_is_not_required() -> None:
    broken = replace(claim("locked", check="records", probe="static.records"), required=False)
    not_run = replace(CPU_CLAIM, unproven="nothing of the image was run: records/locked failed")
    image_claims = claims(STATIC_CLAIM, broken, not_run)
    evidence = Evidence(
        image=NAME,
        digest="sha256:1",
        records=(STATIC_RECORD, record_of("static.records", "locked")),
        host={},
        claims=image_claims.claims,
    )
    judges = {
        "pins": lambda *_: Finding(Status.PASS, "good"),
        "records": lambda *_: Finding(Status.FAIL, "bad"),
    }
    verdict = judge(image_claims, evidence, STATIC_AND_CPU, judges=judges)

    reason = naming.why_withheld(verdict, evidence, STATIC_AND_CPU)

    assert reason == "1 claim failed (records/locked)"


# --- --claim --------------------------------------------------------------------------------------


def claim_named(key: str, tier: Tier) -> Claim:
    check, subject = key.split("/")
    return Claim(check=check, subject=subject, tier=tier, probe="cpu.examples", statement="")


CLAIMS = ClaimSet(
    image="cu126-torch27",
    claims=(
        claim_named("imports/torch", Tier.CPU),
        claim_named("multigpu-examples/axolotl-zero2", Tier.MULTIGPU),
        claim_named("multigpu-examples/axolotl-zero2-offload", Tier.MULTIGPU),
        claim_named("multigpu-examples/axolotl-fsdp2", Tier.MULTIGPU),
    ),
)


@pytest.mark.parametrize(
    ("texts", "subjects"),
    [
        pytest.param(
            ["multigpu-examples"],
            ["axolotl-zero2", "axolotl-zero2-offload", "axolotl-fsdp2"],
            id="check",
        ),
        pytest.param(["multigpu-examples/axolotl-zero2"], ["axolotl-zero2"], id="claim"),
        pytest.param(
            ["multigpu-examples/axolotl-zero2*"],
            ["axolotl-zero2", "axolotl-zero2-offload"],
            id="pattern",
        ),
        pytest.param(["torch"], ["torch"], id="subject"),
        pytest.param(
            ["*/torch", "multigpu-examples/axolotl-fsdp2"],
            ["torch", "axolotl-fsdp2"],
            id="pattern and claim",
        ),
    ],
)
def test_claims_are_chosen_by_name_by_check_by_subject_and_by_pattern(
    texts: list[str], subjects: list[str]
) -> None:
    chosen = validating.choose_claims(CLAIMS, tuple(Tier), texts)

    assert [claim.subject for claim in chosen.claims] == subjects


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("import/torch", "imports/torch"),
        ("imports/", "imports"),
        ("zero2", "multigpu-examples/axolotl-zero2"),
        pytest.param("S5 bitsandbytes", "imports, multigpu-examples", id="no similar name"),
    ],
)
def test_an_unknown_name_is_refused_with_similar_names(text: str, suggestion: str) -> None:
    with pytest.raises(UserError) as raised:
        validating.choose_claims(CLAIMS, tuple(Tier), [text])

    (problem,) = raised.value.problems
    assert problem.where == f"--claim {text!r}"
    assert suggestion in problem.then


def test_each_name_of_no_claim_in_these_tiers_is_refused_with_what_there_is() -> None:
    with pytest.raises(UserError) as raised:
        validating.choose_claims(CLAIMS, (Tier.CPU,), ["multigpu-examples", "attention"])

    problems = raised.value.problems
    places = [problem.where for problem in problems]
    assert places == ["--claim 'multigpu-examples'", "--claim 'attention'"]
    for problem in problems:
        assert "cpu" in problem.cause
        assert "imports" in problem.then
