"""Checks from metadata and variables: what is a fault, what is none."""

from dataclasses import replace

import pytest

from images.audit import checks
from images.audit.model import Outcome, Severity
from images.config import matrix
from images.engine import ImageInfo
from images.planning import chooser
from tests.support.audit_samples import code, distribution, environment
from tests.support.cases import cases
from tests.support.engine_contents import image_info

INFO = image_info(env={"PATH": "/usr/bin"}, user="1000")
FACTS = matrix.load_facts()
SURVEY = {"interpreters": [], "driver_files": [], "preload": []}


@pytest.mark.parametrize(("line", "told"), cases(__file__, "requirements"))
def test_requirements_are_told_as_pip_check_tells_them(line: str, told: str) -> None:
    found = list(checks.unmet(environment(distribution("a", "1.0", line), distribution("numpy", "1.26.4"))))
    assert found == ([f"a 1.0 {told}"] if told else [])


def _faults(info: ImageInfo, **survey: object) -> dict[str, tuple[Severity, str]]:
    found = checks.of_image(info, {**SURVEY, **survey}, [])
    return {one.key: (one.severity, one.text) for one in found if one.outcome is Outcome.FAULT}


def test_a_plain_image_has_no_fault() -> None:
    assert _faults(INFO) == {}


@pytest.mark.parametrize(
    ("env", "key", "severity"),
    [
        ({"NVIDIA_TF32_OVERRIDE": "1"}, "environment/variables", Severity.ERROR),
        ({"LD_PRELOAD": "/x.so"}, "environment/variables", Severity.ERROR),
        ({"OMP_NUM_THREADS": "1"}, "environment/settings", Severity.WARNING),
        ({"https_proxy": "http://proxy:3128"}, "environment/settings", Severity.WARNING),
        ({"NVIDIA_DRIVER_CAPABILITIES": "graphics"}, "image/runtime", Severity.ERROR),
        ({"NVIDIA_DISABLE_REQUIRE": "true"}, "image/runtime", Severity.ERROR),
    ],
)
def test_a_variable_that_misleads_is_told(env: dict[str, str], key: str, severity: Severity) -> None:
    assert _faults(replace(INFO, env=env))[key][0] is severity


@pytest.mark.parametrize(
    "name",
    [
        "PIP_NO_CACHE_DIR",
        "UV_SYSTEM_PYTHON",
        "TRITON_CACHE_DIR",
        "FLASH_ATTENTION_FORCE_BUILD",
        "CUDA_HOME",
        "http_proxy",
    ],
)
def test_a_variable_that_changes_no_result_is_none(name: str) -> None:
    assert _faults(replace(INFO, env={name: "" if name == "http_proxy" else "1"})) == {}


def test_root_is_a_note() -> None:
    assert _faults(replace(INFO, user=""))["image/user"][0] is Severity.NOTE


def test_a_python_that_is_a_script_or_was_changed_is_told() -> None:
    script = {"path": "/usr/local/bin/python3", "real": "/usr/local/bin/python3", "elf": False, "as_packaged": None}
    changed = {"path": "/usr/bin/python3", "real": "/usr/bin/python3.11", "elf": True, "as_packaged": False}
    unknown = {"path": "/opt/bin/python3", "real": "/opt/bin/python3.11", "elf": True, "as_packaged": None}
    text = _faults(INFO, interpreters=[script, changed, unknown])["audit/interpreters"][1]
    assert "/usr/local/bin/python3 is no machine code" in text
    assert "/usr/bin/python3.11 is not the file that its Debian package brought" in text
    assert "/opt/bin" not in text


def _of_environment(found: dict[str, object], *toolkits: dict[str, str]) -> dict[str, str]:
    judged = checks.of_environment(found, list(toolkits))
    return {one.key: one.text for one in judged if one.outcome is Outcome.FAULT}


def test_a_second_copy_is_told_unless_pip_put_it_over_debians() -> None:
    twice = environment(distribution("a", "1"), distribution("a", "2", location="/workspace"))
    assert "a is there 2 times: 1 in" in _of_environment(twice)["audit/duplicates"]
    above = [distribution("a", "2", location="/usr/local/lib/python3.11/dist-packages")]
    above.append(distribution("a", "1", location="/usr/lib/python3/dist-packages"))
    assert _of_environment(environment(*above)) == {}


def test_a_toolkit_of_another_major_is_told() -> None:
    wrong = {"home": "/usr/local/cuda-13.0", "version": "13.0"}
    right = {"home": "/usr/local/cuda-12.8", "version": "12.8"}
    assert "/usr/local/cuda-13.0 is CUDA 13.0" in _of_environment(environment(), wrong, right)["toolkit/cuda"]
    assert _of_environment(environment(), right) == {}


@pytest.mark.parametrize(
    ("gpu", "driver", "told"),
    [
        ("RTX 5090", "570.86", "has no code for sm_120"),
        ("RTX 5090", "550.90", "sm_120 (Blackwell) needs driver 570 or newer"),
        ("RTX 4090", "470.57", "CUDA 12 needs driver 525.60.13 or newer"),
        ("H100", "550.90", "torchao has no code for sm_90"),
        ("A100", "550.90", ""),
    ],
)
def test_what_keeps_packages_from_a_machine_is_told(gpu: str, driver: str, told: str) -> None:
    libraries = [
        code("torch/lib/libtorch_cuda.so", "torch", sm_80=1 << 30, sm_86=1 << 30, sm_90=1 << 30),
        code("torchao/_C.abi3.so", "torchao", sm_80=1 << 20),
    ]
    found = environment(distribution("torch", "2.7.1"))
    (one,) = checks.of_machine(found, libraries, matrix.load_facts(), chooser.described(gpu, "", driver))
    assert (one.outcome is Outcome.FAULT) is bool(told) and told in one.text


@pytest.mark.parametrize(("cudnn", "fault"), [("9.10.2.21", True), ("9.15.1.9", False)])
def test_versions_with_an_ordinary_silent_fault_are_told(cudnn: str, fault: bool) -> None:
    found = environment(distribution("torch", "2.8.0"), distribution("nvidia-cudnn-cu12", cudnn))
    ordinary = next(one for one in checks.of_versions(found, FACTS) if one.subject == "silent-faults")
    assert (ordinary.outcome is Outcome.FAULT) is fault and (("pytorch#163539" in ordinary.text) is fault)


def test_releases_that_fail_together_are_told() -> None:
    found = environment(distribution("peft", "0.17.1"), distribution("transformers", "5.0.0"))
    (conflict,) = [one for one in checks.of_versions(found, FACTS) if one.subject == "conflicts"]
    assert conflict.outcome is Outcome.FAULT
    assert conflict.text.startswith("peft 0.17.1 and transformers 5.0.0 fail together: ")
    found = environment(distribution("peft", "0.18.0"), distribution("transformers", "5.0.0"))
    (conflict,) = [one for one in checks.of_versions(found, FACTS) if one.subject == "conflicts"]
    assert conflict.outcome is Outcome.NONE
