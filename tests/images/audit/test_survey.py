"""Rules about what the survey saw: what is a fault, what is none."""

from dataclasses import replace
from typing import Any

import pytest

from images.audit import survey
from images.engine import ImageInfo
from tests.support.audit_samples import distribution, environment
from tests.support.cases import cases
from tests.support.engine_contents import image_info
from validate.judging import Status

INFO = image_info(env={"PATH": "/usr/bin"}, user="1000")
FILES: dict[str, Any] = {"driver_files": [], "preload": []}


def faults_of_image(info: ImageInfo = INFO, **files: object) -> dict[str, str]:
    """Return subject -> reason of each rule that is broken."""
    return faults_in(survey.image_evidence(info, {**FILES, **files}))


def faults_of_environment(found: dict[str, Any], *toolkits: dict[str, str]) -> dict[str, str]:
    return faults_in(survey.environment_evidence(found, toolkits))


def faults_in(evidence: dict[str, Any]) -> dict[str, str]:
    rules = {rule.subject for rule in (*survey.OF_IMAGE, *survey.OF_ENVIRONMENT)}
    findings = {
        subject: survey.judge(subject, {}, found)
        for subject, found in evidence.items()
        if subject in rules
    }
    return {
        subject: reason for subject, (status, reason) in findings.items() if status is Status.FAIL
    }


@pytest.mark.parametrize(("line", "told"), cases(__file__, "requirements"))
def test_requirements_are_told_as_pip_check_tells_them(line: str, told: str) -> None:
    found = environment(distribution("a", "1.0", line), distribution("numpy", "1.26.4"))
    evidence = survey.environment_evidence(found, [])["requirements"]
    assert list(survey.find_unmet_requirements(evidence)) == ([f"a 1.0 {told}"] if told else [])


def test_a_plain_image_and_environment_have_no_fault() -> None:
    assert faults_of_image() == {}
    assert faults_of_environment(environment(distribution("a", "1"))) == {}


def test_every_rule_has_evidence() -> None:
    evidence = survey.image_evidence(INFO, FILES) | survey.environment_evidence(environment(), [])
    rules = {rule.subject for rule in (*survey.OF_IMAGE, *survey.OF_ENVIRONMENT)}
    assert set(evidence) == {*rules, "conflicts"}


@pytest.mark.parametrize(
    ("variables", "subject"),
    [
        ({"NVIDIA_TF32_OVERRIDE": "1"}, "variables"),
        ({"LD_PRELOAD": "/x.so"}, "variables"),
        ({"OMP_NUM_THREADS": "1"}, "settings"),
        ({"https_proxy": "http://proxy:3128"}, "settings"),
        ({"NVIDIA_DRIVER_CAPABILITIES": "graphics"}, "runtime"),
        ({"NVIDIA_DISABLE_REQUIRE": "true"}, "runtime"),
    ],
)
def test_a_variable_that_misleads_is_told(variables: dict[str, str], subject: str) -> None:
    (name,) = variables
    assert name in faults_of_image(replace(INFO, env=variables))[subject]


@pytest.mark.parametrize(
    "name", ["PIP_NO_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_HOME", "http_proxy"]
)
def test_a_variable_that_changes_no_result_is_none(name: str) -> None:
    assert faults_of_image(replace(INFO, env={name: "" if name == "http_proxy" else "1"})) == {}


def test_no_variable_is_kept_that_no_rule_names() -> None:
    evidence = survey.image_evidence(replace(INFO, env={"API_KEY": "secret"}), FILES)
    assert "secret" not in str(evidence)


def test_root_is_told_and_is_not_required() -> None:
    assert faults_of_image(replace(INFO, user=""))["user"].startswith("it runs as root. Fix: ")
    assert not next(rule for rule in survey.OF_IMAGE if rule.subject == "user").required


def test_files_of_the_driver_and_what_is_preloaded_are_told() -> None:
    found = faults_of_image(driver_files=["/usr/lib/libcuda.so.1"], preload=["/evil.so"])
    assert "/usr/lib/libcuda.so.1" in found["driver"] and "/evil.so" in found["preload"]


def test_a_second_copy_is_told_unless_pip_put_it_over_debians() -> None:
    twice = environment(distribution("a", "1"), distribution("a", "2", location="/workspace"))
    assert "a is there 2 times: 1 in" in faults_of_environment(twice)["duplicates"]
    above = [distribution("a", "2", location="/usr/local/lib/python3.11/dist-packages")]
    above.append(distribution("a", "1", location="/usr/lib/python3/dist-packages"))
    assert faults_of_environment(environment(*above)) == {}


def test_an_extension_for_numpy_1_is_told_beside_numpy_2() -> None:
    for numpy, told in (("2.0.2", True), ("1.26.4", False)):
        found = {**environment(distribution("numpy", numpy)), "numpy_1": ["/x/a.so"]}
        assert (
            "/x/a.so is compiled for NumPy 1" in faults_of_environment(found).get("numpy", "")
        ) is told


def test_a_toolkit_of_another_major_is_told() -> None:
    wrong = {"home": "/usr/local/cuda-13.0", "version": "13.0"}
    right = {"home": "/usr/local/cuda-12.8", "version": "12.8"}
    assert (
        "/usr/local/cuda-13.0 is CUDA 13.0"
        in faults_of_environment(environment(), wrong, right)["toolkit"]
    )
    assert faults_of_environment(environment(), right) == {}


@pytest.mark.parametrize(("cudnn", "told"), [("9.10.2.21", True), ("9.15.1.9", False)])
def test_versions_with_an_ordinary_silent_fault_are_told(cudnn: str, told: bool) -> None:
    found = environment(distribution("torch", "2.8.0"), distribution("nvidia-cudnn-cu12", cudnn))
    assert ("pytorch#163539" in faults_of_environment(found).get("silent-faults", "")) is told
