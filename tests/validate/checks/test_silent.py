"""The corpus of silent faults: its rows, its functions and its judge."""

import ast
from pathlib import Path
from typing import Any

import pytest

from images.planning import silent
from tests.support.cases import cases
from validate.checks._silent import judge
from validate.judging import Status
from validate.kernels import silent as corpus

FOLDER = Path(corpus.__file__).parent


def public_functions(file: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def test_each_row_has_a_function_and_each_function_a_row() -> None:
    functions = set()
    for name in corpus.FILES:
        functions |= public_functions(FOLDER / f"{name}.py")

    assert functions == {name.replace("-", "_") for name in silent.faults()}
    assert len(silent.faults()) >= 25


def test_every_file_of_the_corpus_is_listed() -> None:
    assert {path.stem for path in FOLDER.glob("[a-z]*.py")} == {*corpus.FILES}


def test_a_fault_without_a_function_is_an_error() -> None:
    with pytest.raises(LookupError, match="no function of the silent fault conv9d"):
        corpus.find_function("conv9d")


@pytest.mark.parametrize(("versions", "subject", "has_fault"), cases(__file__, "versions"))
def test_versions_tell_which_faults_are_there(
    versions: dict[str, str], subject: str, has_fault: bool
) -> None:
    assert (subject in silent.find_faults(versions)) is has_fault


@pytest.mark.parametrize(
    ("issues", "torch", "met"),
    [
        ("pytorch#144643 Liger-Kernel#272", "2.8.0", []),
        # torch takes cuDNN's attention by default from 2.11 on
        ("pytorch#196678", "2.10.0", []),
        (
            "pytorch#144643 pytorch#163539",
            "2.8.0",
            [
                "silently wrong: conv3d in bfloat16 over a large input (pytorch#163539); "
                "take nvidia-cudnn 9.15 or newer"
            ],
        ),
    ],
)
def test_aliases_avoid_only_what_plain_training_meets(
    issues: str, torch: str, met: list[str]
) -> None:
    assert list(silent.describe_faults_of_plain_training(issues, torch)) == met


def test_plain_training_meets_the_fault_of_cudnns_attention_from_torch_2_11_on() -> None:
    assert silent.describe_faults_of_plain_training("pytorch#196678", "2.11.0")


FAULT = (
    "silently wrong: conv3d in bfloat16 over a large input (pytorch#163539); take nvidia-cudnn "
    "9.15 or newer"
)
EXPECT = {
    "tolerance": 0.02,
    "gigabytes": 25,
    "alone": False,
    "fault": FAULT,
    "known": False,
}
HEALTHY = {"off": 0.003, "control": 0.9, "seconds": 1.5, "gigabytes": 20.0}
WRONG_RESULT = {**HEALTHY, "off": 0.5}
NOT_FINITE = {**HEALTHY, "off": "inf", "control": "inf"}
PASSING_CONTROL = {**HEALTHY, "control": 0.01}
QUICK = {**HEALTHY, "figures": {"times": 3.0}}
SLOW = {**HEALTHY, "figures": {"times": 400.0}}
KNOWN = {"known": True}
AT_MOST_50_TIMES = {"times": 50}


@pytest.mark.parametrize(
    ("expect", "evidence", "status", "reason"),
    [
        ({}, HEALTHY, Status.PASS, "off by 3.00e-03 of the largest value (1.5 s, 20 GB)"),
        (KNOWN, HEALTHY, Status.PASS, "though these versions are said to have it"),
        # A result that is off is a FAIL, or KNOWN of these versions.
        (
            {},
            WRONG_RESULT,
            Status.FAIL,
            f"at most 2.00e-02 is allowed. {FAULT}",
        ),
        ({}, NOT_FINITE, Status.FAIL, "off by inf of the largest value, and at most"),
        (
            KNOWN,
            WRONG_RESULT,
            Status.KNOWN,
            f"at most 2.00e-02 is allowed. {FAULT}",
        ),
        # So is one that takes many times as long as the right way.
        (AT_MOST_50_TIMES, QUICK, Status.PASS, "(1.5 s, 20 GB, 3 times)"),
        (AT_MOST_50_TIMES, SLOW, Status.FAIL, "400 times as long as the right one, and at most 50"),
        (AT_MOST_50_TIMES, HEALTHY, Status.FAIL, "takes nan times as long"),
        (
            {**KNOWN, **AT_MOST_50_TIMES},
            SLOW,
            Status.KNOWN,
            "400 times as long as the right one, and at most 50",
        ),
        # A control that passes is a FAIL, whatever is known.
        ({}, PASSING_CONTROL, Status.FAIL, "passes as right (up to 2.00e-02 is allowed)"),
        (KNOWN, PASSING_CONTROL, Status.FAIL, "passes as right (up to 2.00e-02 is allowed)"),
        # Too little GPU memory, of the GPU or at this time.
        (
            {},
            {"free": 15.2, "total": 24.0},
            Status.NOT_APPLICABLE,
            "takes 25 GB of GPU memory, and this GPU has 24 GB",
        ),
        (
            {},
            {"free": 15.2, "total": 80.0},
            Status.UNPROVEN,
            "takes 25 GB of GPU memory, and 15 of 80 GB are free",
        ),
    ],
)
def test_a_fault_is_judged_by_its_result_its_control_and_its_time(
    expect: dict[str, object], evidence: Any, status: Status, reason: str
) -> None:
    claim_expect: Any = {**EXPECT, **expect}

    finding = judge("x", claim_expect, evidence)

    assert finding.status is status
    assert reason in finding.reason
