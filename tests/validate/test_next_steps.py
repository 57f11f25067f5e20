"""Each claim that does not hold says what to do now, once, and not beside a hint."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.building import run_files
from tests.support.probes import all_probes
from validate import checks, next_steps, report
from validate.checks.static.libraries import NVIDIAS_LIBRARIES
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.hints import known
from validate.judge import ClaimVerdict, Verdict, explain, fit_to_image, judge
from validate.judging import (
    PROVES_NOTHING,
    Finding,
    Status,
    failed,
    joined,
    known_fault,
    passed,
    unproven,
)
from validate.next_steps import if_image_sets, pin, remove_variables

STEP = "pin the release"
WORDS_OF_OTHERS = {
    *("GLIBC", "No module named", "undefined symbol", "cannot open shared object"),
    *("Permission denied", "Read-only file system", "No working C++ compiler"),
    *(" needs libtorch", " needs libc10"),
    *(f" needs lib{name}" for name in NVIDIAS_LIBRARIES),
}
"""Words of reasons that the system, the loader or Python wrote, and names of libraries."""
CHECKS_OF_FOLDERS = ("files", "libraries", "symbols", "device-code")
"""Those of an audited folder whose steps are in a check's file."""
CLAIM = Claim(
    check="imports", subject="torch", tier=Tier.CPU, probe="cpu.imports", statement="it imports"
)


def verdict_on(
    finding: Finding,
    outcome: Outcome = Outcome.COMPLETED,
    evidence: Mapping[str, Any] | None = None,
    image: str = "i",
) -> ClaimVerdict:
    """Judge one claim of `cpu.imports` by this evidence. Its judge answers with this finding."""
    measurement = Measurement(subject="torch", seconds=1.0, evidence=evidence or {})
    record = Record(
        probe="cpu.imports", outcome=outcome, seconds=1.0, measurements=(measurement,), exit_code=1
    )
    run = Evidence(image=image, digest="", records=(record,))
    claims = ClaimSet(image=image, claims=(CLAIM,))
    (judged,) = judge(claims, run, judges={"imports": lambda *_: finding}).claims
    return judged


def failed_claim(subject: str, reason: str, step: str = STEP) -> ClaimVerdict:
    """The verdict of `imports/SUBJECT`."""
    return ClaimVerdict(
        claim=replace(CLAIM, subject=subject),
        status=Status.FAIL,
        reason=reason,
        seconds=1.0,
        evidence={},
        next_step=step,
    )


def steps_of(next_step: checks.NextStep) -> list[str]:
    """The steps of a row of NEXT_STEPS: one, or one for each kind of reason."""
    return [next_step] if isinstance(next_step, str) else list(next_step.values())


def step_of_check(reason: str) -> str:
    """What the check of CLAIM says about a failure of a user's own image for this reason."""
    return fit_to_image(checks.next_step_of(CLAIM, reason), "i")


def lines_about(*claims: ClaimVerdict) -> list[str]:
    """The lines of a report about these claims, without title and summary."""
    lines = report.lines(Verdict(image="i", digest="", claims=claims))
    return lines[1 : lines.index("")]


@pytest.mark.parametrize(
    ("reason", "package"),
    [
        ("x.so of numpy 2.4.6 is missing", "numpy==2.4.6"),
        ("x.so of numpy 2.4.6 is missing; y.so of six 1.0 is altered", "PACKAGE==VERSION"),
    ],
)
def test_the_step_about_a_changed_file_names_its_package(reason: str, package: str) -> None:
    claim = replace(CLAIM, check="files", subject="recorded", probe="static.files")
    measurement = Measurement(subject="recorded", seconds=1.0, evidence={})
    record = Record(
        probe="static.files", outcome=Outcome.COMPLETED, seconds=1.0, measurements=(measurement,)
    )
    run = Evidence(image="i", digest="", records=(record,))

    (judged,) = judge(
        ClaimSet(image="i", claims=(claim,)), run, judges={"files": lambda *_: failed(reason)}
    ).claims

    assert f"--force-reinstall --no-deps {package}`" in judged.next_step


def test_every_claim_of_every_check_has_a_next_step_in_its_file() -> None:
    for probe, file in all_probes():
        for key in file.CLAIMS:
            check, _, subject = key.partition("/")
            claim = replace(CLAIM, check=check, subject=subject or "any", probe=probe)

            assert key in file.NEXT_STEPS, f"{key} of {probe} has no row in NEXT_STEPS"
            assert checks.next_step_of(claim, "it is broken") in steps_of(file.NEXT_STEPS[key])


def test_a_next_step_is_about_a_claim_of_its_file_and_has_no_full_stop() -> None:
    for probe, file in all_probes():
        for key, next_step in file.NEXT_STEPS.items():
            assert key in file.CLAIMS or key.partition("/")[0] in file.CLAIMS, (probe, key)
            for step in steps_of(next_step):
                assert not step.endswith("."), (probe, key)
                assert "{" not in step, (probe, key)


def test_a_next_step_says_what_to_do_and_goes_to_the_end() -> None:
    """A line of a Dockerfile is removed and not unset, and a new lock needs a new build."""
    for probe, file in all_probes():
        for key, next_step in file.NEXT_STEPS.items():
            for step in steps_of(next_step):
                assert not re.search(r"\bunset\b|\bleave\b", step), (probe, key)
                if next_steps.LOCK in step:
                    build_or_validate = (next_steps.BUILD, next_steps.VALIDATE_AGAIN)
                    assert any(command in step for command in build_or_validate), (probe, key)


def test_of_several_next_steps_the_last_serves_for_every_other_reason() -> None:
    for probe, file in all_probes():
        for key, next_step in file.NEXT_STEPS.items():
            if not isinstance(next_step, str):
                assert "" not in list(next_step)[:-1], (probe, key)
                assert list(next_step)[-1] == "", (probe, key)


def test_the_words_of_a_next_step_are_in_a_reason_of_its_check() -> None:
    """Else a reason was worded anew, and this step is never shown."""
    sources = "".join(path.read_text() for path in Path("validate").rglob("*.py"))
    for probe, file in all_probes():
        for key, next_step in file.NEXT_STEPS.items():
            words = [] if isinstance(next_step, str) else next_step
            for text in set(words) - WORDS_OF_OTHERS:
                # Once in NEXT_STEPS, and once where the reason is written.
                assert sources.count(text.strip(" (`")) > 1, (probe, key, text)


@pytest.mark.parametrize("finding", [failed("it is broken"), known_fault("it is broken")])
def test_a_failed_claim_gets_the_step_of_its_check(finding: Finding) -> None:
    assert verdict_on(finding).next_step == step_of_check("it is broken")


def test_a_reason_gets_the_step_that_is_for_its_words() -> None:
    missing = verdict_on(failed("ModuleNotFoundError: No module named 'six'")).next_step

    assert missing == step_of_check("No module named 'six'") != step_of_check("it is broken")


def test_a_step_of_the_finding_comes_before_that_of_its_check() -> None:
    assert verdict_on(failed("it is broken", STEP)).next_step == STEP


@pytest.mark.parametrize("finding", [passed("well"), unproven("there is no GPU")])
def test_what_holds_or_was_not_measured_gets_no_step_of_the_check(finding: Finding) -> None:
    assert verdict_on(finding).next_step == ""


@pytest.mark.parametrize(
    "problems",
    [[f"{PROVES_NOTHING}wrong numbers pass"], [f"rank 0: {PROVES_NOTHING}wrong numbers pass"]],
)
def test_a_measurement_that_tells_nothing_blames_no_image(problems: list[str]) -> None:
    step = verdict_on(failed(joined(problems))).next_step

    assert step == fit_to_image(next_steps.MEASUREMENT_FAILED, "i")
    assert "evidence.json" in step


def test_variables_that_the_reason_suspects_are_taken_away_first() -> None:
    evidence = {"environment": {"NVIDIA_TF32_OVERRIDE": "1"}}
    reason = f"{PROVES_NOTHING}wrong numbers pass (NVIDIA_TF32_OVERRIDE=1 is set)"

    step = verdict_on(failed(reason), evidence=evidence).next_step

    assert step == next_steps.remove_variables("NVIDIA_TF32_OVERRIDE")


@pytest.mark.parametrize("make", [remove_variables, if_image_sets, pin])
def test_a_step_names_what_is_to_be_changed(make: Callable[[str], str]) -> None:
    assert "OMP_NUM_THREADS" in make("OMP_NUM_THREADS")


def test_variables_that_explain_nothing_are_left_alone() -> None:
    evidence = {"environment": {"NVIDIA_TF32_OVERRIDE": "1"}}

    judged = verdict_on(failed("a library is missing"), evidence=evidence)

    assert judged.next_step == step_of_check("")


def test_a_wrong_result_comes_before_a_measurement_that_tells_nothing() -> None:
    reason = joined(["numbers are off by nan", f"{PROVES_NOTHING}wrong numbers pass"])

    assert verdict_on(failed(reason)).next_step == step_of_check("")


def test_a_command_has_the_name_of_an_image_of_the_matrix() -> None:
    """In place of NAME, so that it can be given as it stands."""
    finding = failed("it is broken", next_steps.VALIDATE_AGAIN)

    assert "cu126-torch25" in verdict_on(finding, image="cu126-torch25").next_step


@pytest.mark.parametrize(
    ("step", "command"),
    [
        (next_steps.MEASURE_AGAIN, "`nox -s validate -- cu126-torch25 --image IMAGE`"),
        (
            next_steps.PROBE_ENDED,
            "`nox -s validate -- cu126-torch25 --image IMAGE --claim CLAIM`",
        ),
        (next_steps.REPORT, "in out/validate/IMAGE/"),
    ],
)
def test_a_command_measures_an_own_image_and_not_the_one_that_it_stands_on(
    step: str, command: str
) -> None:
    judged = verdict_on(failed("it is broken", step), image="an image on cu126-torch25")

    assert command in judged.next_step


def test_no_step_of_a_check_names_the_matrix_to_whoever_has_an_own_image() -> None:
    """Nor a command that builds what only images of the matrix take, as `wheels` does."""
    for probe, file in all_probes():
        for key, next_step in file.NEXT_STEPS.items():
            for step in steps_of(next_step):
                judged = verdict_on(failed("broken", step), image="an image on cu126-torch25")

                assert not re.search("matrix|--base", judged.next_step), (probe, key)
                commands = re.findall(r"nox -s (\w+)", judged.next_step)
                assert set(commands) <= {"validate"}, (probe, key)


@pytest.mark.parametrize(
    ("digest", "image", "command"),
    [
        ("sha256:1", "audit of some/image:1", "`nox -s audit -- some/image:1`"),
        ("", "audit of my env/.venv", "`nox -s audit -- 'my env/.venv'`"),
    ],
    ids=["image", "folder"],
)
def test_no_step_of_an_audit_names_a_validation_or_the_matrix(
    digest: str, image: str, command: str
) -> None:
    """A newcomer who audited an image of his own was sent to `validate`."""

    def fitted(step: str) -> str:
        return fit_to_image(step, image, is_folder=not digest)

    for step in (next_steps.PROBE_ENDED, next_steps.MEASURE_AGAIN, next_steps.RUN_AS_ASKED):
        assert command in fitted(step)
    for probe, file in all_probes():
        for key, next_step in file.NEXT_STEPS.items():
            for step in steps_of(next_step):
                words = fitted(step)
                assert not re.search(r"validat|auditd|matrix|\bNAME\b|\bIMAGE\b", words), (
                    probe,
                    key,
                )
                if not digest and key in CHECKS_OF_FOLDERS:
                    assert not re.search("Dockerfile|docker|image", words), (probe, key)


def test_a_folder_is_told_from_an_image_by_its_lack_of_a_digest() -> None:
    judged = verdict_on(failed("it is broken", next_steps.BUILD_ANEW), image="audit of .venv")

    assert judged.next_step == "make the environment anew"


def test_a_step_has_only_the_commands_for_the_image_that_it_is_about() -> None:
    """A reader has either a row of matrix.yaml or a Dockerfile, and the program knows which."""
    finding = failed("it is broken", f"{pin('another six')}; or {next_steps.BUILD_ANEW}")

    assert verdict_on(finding, image="cu126-torch25").next_step == (
        "pin in matrix.yaml another six, then run `nox -s lock -- cu126-torch25` and `nox -s build "
        "-- cu126-torch25`; or build the image without cached steps (`nox -s build -- "
        "cu126-torch25 --no-cache`)"
    )
    assert verdict_on(finding, image="an image on cu126-torch25").next_step == (
        "install with pip in your Dockerfile another six, then build the image again and validate "
        "it; or build the image without cached steps (`docker build --no-cache`)"
    )


def test_packages_that_are_not_as_locked_are_blamed_on_the_dockerfile_of_an_own_image() -> None:
    finding = failed("it is broken", next_steps.AS_LOCKED)

    assert "Dockerfile" not in verdict_on(finding, image="cu126-torch25").next_step
    assert "--upgrade" in verdict_on(finding, image="an image on cu126-torch25").next_step


def test_a_probe_that_broke_off_says_how_to_run_it_alone() -> None:
    judged = verdict_on(passed("well"), Outcome.CRASHED)

    assert judged.status is Status.UNPROVEN
    assert judged.next_step == fit_to_image(next_steps.PROBE_ENDED, "i")


def test_claims_of_a_check_share_one_next_line() -> None:
    lines = lines_about(failed_claim("torch", "a"), failed_claim("peft", "b"))

    assert lines == [
        "FAIL  imports/torch (cpu): a",
        "FAIL  imports/peft (cpu): b",
        f"    next: {STEP}",
    ]


def test_checks_with_different_steps_have_a_line_each() -> None:
    lines = lines_about(failed_claim("torch", "a"), failed_claim("peft", "b", "do this"))

    assert lines == [
        "FAIL  imports/torch (cpu): a",
        f"    next: {STEP}",
        "FAIL  imports/peft (cpu): b",
        "    next: do this",
    ]


def test_a_hint_and_the_next_step_are_in_every_report() -> None:
    judged = replace(failed_claim("torch", "a"), hints=known()[:1])
    verdict = Verdict(image="i", digest="", claims=(judged,))

    (row,) = report.json_data(verdict)["claims"]
    texts = [
        *lines_about(judged),
        report.markdown(verdict),
        run_files.junit(verdict),
    ]

    assert row["next_step"] == STEP and row["hints"]
    assert [text for text in texts if STEP in text] == [f"    next: {STEP}", *texts[-2:]]


def test_every_report_shows_the_next_step() -> None:
    verdict = Verdict(image="i", digest="", claims=(failed_claim("torch", "a"),))

    (row,) = json.loads(json.dumps(report.json_data(verdict)))["claims"]

    assert row["next_step"] == STEP
    assert f"- imports/torch: {STEP}" in report.markdown(verdict)
    assert f"next: {STEP}" in run_files.junit(verdict)


def test_a_known_error_has_its_hint_above_the_step_of_the_claim() -> None:
    """A hint has every cause of an error, and the step the one that this claim knows."""
    reason = "RuntimeError: CUDA error: no kernel image is available for execution on the device"

    (explained,) = explain(
        Verdict(image="i", digest="", claims=(failed_claim("torch", reason),))
    ).claims

    lines = lines_about(explained)
    assert lines[-2].startswith("    hint: ")
    assert lines[-1] == f"    next: {STEP}"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("other programs held 9.7 GB of the GPU's memory", "end the programs"),
        ("clocks were slowed down (heat)", "what slows this GPU down"),
        ("the GPU ran at 900 MHz at most, and can run at 1980", "what slows this GPU down"),
        ("the GPU's power is limited to 300 W, 700 W is usual", "what slows this GPU down"),
    ],
)
def test_what_disturbed_a_gpu_decides_the_step(reason: str, words: str) -> None:
    assert words in next_steps.calm_gpu(reason)
