"""The rules about what the survey saw: what is a fault, and what is none."""

from dataclasses import replace
from typing import Any

import pytest

from images.audit import survey
from images.engine import ImageInfo
from tests.support.audit_samples import distribution, environment
from tests.support.cases import cases
from tests.support.engine_contents import image_info
from validate.judging import Status

IMAGE = image_info(env={"PATH": "/usr/bin"}, user="1000")
FILES: dict[str, Any] = {"driver_files": [], "preload": []}
ALL_RULES = {rule.subject: rule for rule in (*survey.OF_IMAGE, *survey.OF_ENVIRONMENT)}


def faults_of_image(info: ImageInfo = IMAGE, **files: list[str]) -> dict[str, str]:
    """Return the rules that an image breaks: subject -> reason and next step.

    `files`: as the survey has them.
    """
    return faults_in(survey.image_evidence(info, {**FILES, **files}))


def faults_of_environment(surveyed: dict[str, Any], *toolkits: dict[str, str]) -> dict[str, str]:
    """Return the rules that an environment beside these toolkits breaks: subject -> reason.

    Known faults of its versions are among them.
    """
    return faults_in(survey.environment_evidence(surveyed, toolkits))


def faults_in(evidence_by_subject: dict[str, Any]) -> dict[str, str]:
    faults = {}
    for subject, evidence in evidence_by_subject.items():
        if subject not in ALL_RULES:
            continue
        finding = survey.judge(subject, {}, evidence)
        if finding.status in (Status.FAIL, Status.KNOWN):
            step = f" (next: {finding.next_step})" if finding.next_step else ""
            faults[subject] = f"{finding.reason}{step}"
    return faults


def test_a_plain_image_breaks_no_rule() -> None:
    assert faults_of_image() == {}


def test_a_plain_environment_breaks_no_rule() -> None:
    assert faults_of_environment(environment(distribution("a", "1"))) == {}


def test_every_rule_has_evidence() -> None:
    evidence = survey.image_evidence(IMAGE, FILES) | survey.environment_evidence(environment(), [])

    # The claims `conflicts` and `limits` are no rules, and are judged by this evidence, too.
    assert set(evidence) == {*ALL_RULES, "conflicts", "limits"}


# --- variables ------------------------------------------------------------------------------------


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
def test_a_variable_that_misleads_is_a_fault(variables: dict[str, str], subject: str) -> None:
    (name,) = variables

    assert name in faults_of_image(replace(IMAGE, env=variables))[subject]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PIP_NO_CACHE_DIR", "1"),
        ("TRITON_CACHE_DIR", "1"),
        ("CUDA_HOME", "1"),
        pytest.param("http_proxy", "", id="empty proxy"),
    ],
)
def test_a_variable_that_changes_no_result_is_no_fault(name: str, value: str) -> None:
    assert faults_of_image(replace(IMAGE, env={name: value})) == {}


def test_the_evidence_has_no_variable_that_no_rule_names() -> None:
    evidence = survey.image_evidence(replace(IMAGE, env={"API_KEY": "secret"}), FILES)

    assert "secret" not in str(evidence)


# --- images ---------------------------------------------------------------------------------------


def test_an_image_that_runs_as_root_breaks_a_rule_that_is_not_required() -> None:
    reason = faults_of_image(replace(IMAGE, user=""))["user"]

    assert reason.startswith("it runs as root (next: ")
    assert not ALL_RULES["user"].required


def test_files_of_the_driver_are_a_fault() -> None:
    faults = faults_of_image(driver_files=["/usr/lib/libcuda.so.1"])

    assert "/usr/lib/libcuda.so.1" in faults["driver"]


def test_a_preloaded_library_is_a_fault() -> None:
    faults = faults_of_image(preload=["/evil.so"])

    assert "/evil.so" in faults["preload"]


# --- environments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("requirement", "complaint"), cases(__file__, "requirements"))
def test_an_unmet_requirement_is_a_fault_as_for_pip_check(requirement: str, complaint: str) -> None:
    surveyed = environment(distribution("a", "1.0", requirement), distribution("numpy", "1.26.4"))
    evidence = survey.environment_evidence(surveyed, [])["requirements"]

    faults = list(survey.find_unmet_requirements(evidence))

    assert faults == ([f"a 1.0 {complaint}"] if complaint else [])


def test_releases_that_do_not_fit_come_before_what_is_missing() -> None:
    surveyed = environment(
        distribution("a", "1.0", "six"),
        distribution("b", "1.0", "numpy>=2"),
        distribution("numpy", "1.26.4"),
    )

    faults = faults_of_environment(surveyed)["requirements"]

    assert faults.startswith("b 1.0 requires numpy>=2, 1.26.4 is installed; a 1.0 requires six, ")
    assert "(next: install what is missing, and newer releases where one" in faults


def test_a_release_with_which_a_package_refuses_to_be_imported_breaks_a_required_rule() -> None:
    surveyed = environment(
        distribution("transformers", "4.57.6", "tokenizers<=0.23.0,>=0.22.0", "typer"),
        distribution("tokenizers", "0.21.0"),
    )

    faults = faults_of_environment(surveyed)

    assert "requires tokenizers<=0.23.0,>=0.22.0, 0.21.0" in faults["import-requirements"]
    assert ALL_RULES["import-requirements"].required
    assert "tokenizers" not in faults["requirements"], "it is reported once"


def test_a_missing_package_that_is_only_compared_if_it_is_installed_breaks_no_required_rule() -> (
    None
):
    """transformers is imported without tokenizers, and not without tqdm."""
    surveyed = environment(distribution("transformers", "4.57.6", "tokenizers>=0.22.0", "tqdm"))

    faults = faults_of_environment(surveyed)

    assert "requires tqdm, which" in faults["import-requirements"]
    assert "tokenizers" not in faults["import-requirements"]
    assert "requires tokenizers, which is not installed" in faults["requirements"]


@pytest.mark.parametrize("version", ["4.0.1", "of no release"])
def test_a_release_that_compares_nothing_at_import_breaks_no_required_rule(version: str) -> None:
    surveyed = environment(
        distribution("transformers", version, "tqdm>=4.27"), distribution("tqdm", "4.1")
    )

    faults = faults_of_environment(surveyed)

    assert "import-requirements" not in faults
    assert "requires tqdm>=4.27, 4.1 is installed" in faults["requirements"]


@pytest.mark.parametrize(
    ("torch", "cudnn", "is_fault"),
    [("2.9.0", "9.15.1.9", True), ("2.9.1", "9.10.2.21", True), ("2.9.1", "9.15.1.9", False)],
)
def test_only_torch_2_9_1_uses_a_newer_cudnn_for_conv3d(
    torch: str, cudnn: str, is_fault: bool
) -> None:
    surveyed = environment(distribution("torch", torch), distribution("nvidia-cudnn-cu12", cudnn))

    reason = faults_of_environment(surveyed).get("silent-faults", "")

    assert ("pytorch#166643" in reason) is is_fault
    assert ("take torch 2.9.1 with nvidia-cudnn 9.15 or newer" in reason) is is_fault


@pytest.mark.parametrize(
    ("processor", "is_fault"), [("x86_64", True), ("aarch64", False), ("", True)]
)
def test_a_requirement_for_another_processor_than_the_libraries_is_no_fault(
    processor: str, is_fault: bool
) -> None:
    """torch 2.8.0 for aarch64 has no CUDA on PyPI. Without a library, this machine's counts."""
    surveyed = environment(
        distribution("torch", "2.8.0", "nvidia-nccl-cu12; platform_machine == 'x86_64'"),
        processor=processor,
    )

    assert ("requirements" in faults_of_environment(surveyed)) is is_fault


def test_a_second_copy_of_a_package_is_a_fault() -> None:
    surveyed = environment(distribution("a", "1"), distribution("a", "2", location="/workspace"))

    assert "a is installed 2 times: version 1 in" in faults_of_environment(surveyed)["duplicates"]


def test_a_copy_that_hides_one_of_the_python_below_is_no_fault() -> None:
    """`python -m venv --system-site-packages` has pip twice."""
    surveyed = environment(
        distribution("pip", "23.2.1"),
        distribution("pip", "23.0.1", location="/usr/local/lib/python3.11/site-packages"),
    )

    assert faults_of_environment(surveyed) == {}


def test_an_editable_install_is_there_once() -> None:
    """pip 24 and setuptools: the folder src/ has some.egg-info, and is on sys.path by a .pth."""
    surveyed = environment(distribution("a", "1"), distribution("a", "1", location="/project/src"))

    assert faults_of_environment(surveyed) == {}


def test_a_copy_that_pip_put_over_debians_is_no_fault() -> None:
    surveyed = environment(
        distribution("a", "2", location="/usr/local/lib/python3.11/dist-packages"),
        distribution("a", "1", location="/usr/lib/python3/dist-packages"),
    )

    assert faults_of_environment(surveyed) == {}


@pytest.mark.parametrize(("numpy", "is_fault"), [("2.0.2", True), ("1.26.4", False)])
def test_an_extension_for_numpy_1_is_a_fault_beside_numpy_2(numpy: str, is_fault: bool) -> None:
    surveyed = {**environment(distribution("numpy", numpy)), "numpy_1": ["/x/a.so"]}

    reason = faults_of_environment(surveyed).get("numpy", "")

    assert ("/x/a.so is compiled for NumPy 1" in reason) is is_fault


CUDA_12_8 = {"home": "/usr/local/cuda-12.8", "version": "12.8"}
CUDA_13_0 = {"home": "/usr/local/cuda-13.0", "version": "13.0"}


def test_a_toolkit_of_another_major_than_torchs_is_a_fault() -> None:
    faults = faults_of_environment(environment(), CUDA_13_0, CUDA_12_8)

    assert "/usr/local/cuda-13.0 is CUDA 13.0" in faults["toolkit"]


def test_a_toolkit_of_another_minor_than_torchs_is_no_fault() -> None:
    assert faults_of_environment(environment(), CUDA_12_8) == {}


CUDNN = distribution("nvidia-cudnn-cu12", "9.19.0.56")
"""It has pytorch#196678, with torch from 2.6 on."""


@pytest.mark.parametrize(
    ("torch", "others", "is_fault"),
    [
        pytest.param(("2.11.0+cu128", "12.8"), [CUDNN], True, id="cuDNN has it"),
        pytest.param(("2.11.0+cu128", "12.8"), [], False, id="cuDNN not known"),
        pytest.param(("2.11.0+cpu", ""), [CUDNN], False, id="a torch for the CPU"),
        pytest.param(("2.5.1+cu124", "12.4"), [CUDNN], False, id="torch 2.5 can't meet it"),
    ],
)
def test_faults_of_cudnn_are_those_of_an_environment_that_uses_it(
    torch: tuple[str, str], others: list[dict[str, Any]], is_fault: bool
) -> None:
    surveyed = environment(distribution("torch", torch[0]), *others, torch=torch)

    faults = faults_of_environment(surveyed)

    told = faults.get("silent-faults", "") + faults.get("rare-silent-faults", "")
    assert ("pytorch#196678" in told) is is_fault


def test_a_torch_for_the_cpu_has_the_faults_of_code_for_the_cpu_only() -> None:
    surveyed = environment(distribution("torch", "2.13.0+cpu"), torch=("2.13.0+cpu", ""))

    reason = faults_of_environment(surveyed)["rare-silent-faults"]

    assert "pytorch#169688" in reason
    assert "attention" not in reason


def test_a_rare_fault_that_these_versions_are_known_to_have_is_known_and_no_failure() -> None:
    """Nearly every torch has one: as a failure it was noise."""
    surveyed = environment(
        distribution("torch", "2.8.0"), distribution("nvidia-cudnn-cu12", "9.10")
    )
    evidence = survey.environment_evidence(surveyed, ())

    rare = survey.judge("rare-silent-faults", {}, evidence["rare-silent-faults"])
    ordinary = survey.judge("silent-faults", {}, evidence["silent-faults"])

    assert rare.status is Status.KNOWN
    assert "pytorch#" in rare.reason
    assert ordinary.status is Status.FAIL


@pytest.mark.parametrize(("processor", "is_known"), [("x86_64", True), ("aarch64", False)])
def test_a_fault_of_amx_is_known_of_x86_64_only(processor: str, is_known: bool) -> None:
    surveyed = {
        **environment(distribution("torch", "2.13.0+cpu"), torch=("2.13.0+cpu", "")),
        "processors": {processor: 100},
    }

    assert ("rare-silent-faults" in faults_of_environment(surveyed)) is is_known


@pytest.mark.parametrize(("cudnn", "is_fault"), [("9.10.2.21", True), ("9.15.1.9", False)])
def test_versions_with_a_silent_fault_in_plain_training_are_a_fault(
    cudnn: str, is_fault: bool
) -> None:
    surveyed = environment(distribution("torch", "2.8.0"), distribution("nvidia-cudnn-cu12", cudnn))

    reason = faults_of_environment(surveyed).get("silent-faults", "")

    assert ("pytorch#163539" in reason) is is_fault
