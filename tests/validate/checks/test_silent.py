"""The corpus of silent faults: its rows, its functions and its judge."""

import ast
from pathlib import Path

import pytest

from images.planning import silent
from tests.support.cases import cases
from validate.checks._silent import judge
from validate.judging import Status
from validate.kernels import silent as corpus

FOLDER = Path(corpus.__file__).parent


def test_each_row_has_a_function_and_each_function_a_row() -> None:
    files = [ast.parse((FOLDER / f"{name}.py").read_text()) for name in corpus.FILES]
    public = {
        one.name
        for file in files
        for one in file.body
        if isinstance(one, ast.FunctionDef) and one.name[0] != "_"
    }
    assert public == {name.replace("-", "_") for name in silent.faults()}
    assert {path.stem for path in FOLDER.glob("[a-z]*.py")} == {*corpus.FILES}
    assert len(silent.faults()) >= 25
    with pytest.raises(LookupError, match="no function of the silent fault conv9d"):
        corpus.find_function("conv9d")


@pytest.mark.parametrize(("versions", "subject", "has"), cases(__file__, "versions"))
def test_versions_tell_which_faults_are_there(
    versions: dict[str, str], subject: str, has: bool
) -> None:
    assert (subject in silent.known(versions)) is has


def test_aliases_avoid_what_plain_training_meets() -> None:
    assert not silent.ordinary("pytorch#144643 Liger-Kernel#272", "2.8.0")
    assert not silent.ordinary("pytorch#196678", "2.10.0") and silent.ordinary(
        "pytorch#196678", "2.11.0"
    )
    (told,) = silent.ordinary("pytorch#144643 pytorch#163539", "2.8.0")
    assert (
        told
        == "silently wrong: conv3d in bfloat16 over a large input (pytorch#163539); take nvidia-cudnn 9.15 or newer"
    )


EXPECT = {
    "tolerance": 0.02,
    "gigabytes": 25,
    "alone": False,
    "fault": "silently wrong: x (y#1); do z",
    "known": False,
}
GOOD = {"off": 0.003, "control": 0.9, "seconds": 1.5, "gigabytes": 20.0}


@pytest.mark.parametrize(
    ("expect", "evidence", "status", "said"),
    [
        ({}, GOOD, Status.PASS, "off by 3.00e-03 of the largest value (1.5 s, 20 GB)"),
        ({"known": True}, GOOD, Status.PASS, "though these versions are said to have it"),
        (
            {"times": 50},
            {**GOOD, "figures": {"times": 3.0}},
            Status.PASS,
            "(1.5 s, 20 GB, 3 times)",
        ),
        (
            {"times": 50},
            {**GOOD, "figures": {"times": 400.0}},
            Status.FAIL,
            "400 times as long as the right way, 50",
        ),
        ({"times": 50}, GOOD, Status.FAIL, "takes nan times as long"),
        (
            {},
            {**GOOD, "off": 0.5},
            Status.FAIL,
            "at most 2.00e-02 is allowed. silently wrong: x (y#1); do z",
        ),
        (
            {},
            {**GOOD, "off": "inf", "control": "inf"},
            Status.FAIL,
            "off by inf of the largest value, at most",
        ),
        (
            {"known": True},
            {**GOOD, "off": 0.5},
            Status.KNOWN,
            "at most 2.00e-02 is allowed. silently wrong: x (y#1)",
        ),
        (
            {"known": True, "times": 50},
            {**GOOD, "figures": {"times": 400.0}},
            Status.KNOWN,
            "400 times as long as the right way, 50",
        ),
        (
            {"known": True},
            {**GOOD, "control": 0.01},
            Status.FAIL,
            "control: a wrong result is off by 1.00e-02",
        ),
        ({}, {**GOOD, "control": 0.01}, Status.FAIL, "control: a wrong result is off by 1.00e-02"),
        (
            {},
            {"free": 15.2, "total": 24.0},
            Status.NOT_APPLICABLE,
            "24 GB of GPU memory are too few to reach it",
        ),
        ({}, {"free": 15.2, "total": 80.0}, Status.UNPROVEN, "15 of 80 GB of GPU memory are free"),
    ],
)
def test_the_judge(
    expect: dict[str, object], evidence: dict[str, object], status: Status, said: str
) -> None:
    found = judge("x", {**EXPECT, **expect}, evidence)  # type: ignore[arg-type]
    assert found.status is status
    assert said in found.reason
