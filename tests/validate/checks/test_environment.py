"""environment: no variable, settings file or start-up code changes what users run."""

from dataclasses import replace

import pytest

from images.planning import expectations
from tests.support.judging import fails, says
from tests.support.site_packages import (
    VENV_PACKAGES,
    Site,
    measure,
    measure_and_judge,
    static_claim,
)
from validate.checks.static import environment
from validate.claims import Claim
from validate.environment import user_environment
from validate.judging import Finding, Status

CUDA_HOME = "/usr/local/cuda-12.6"
# The fixture needs PYTHONPATH to lend its packages.
DENIED = {name: why for name, why in expectations.DENIED_VARIABLES.items() if name != "PYTHONPATH"}
VARIABLES = static_claim(
    "environment",
    "variables",
    "environment",
    required={"CUDA_HOME": CUDA_HOME},
    denied=DENIED,
    start_files=expectations.START_FILES,
)


def judged(claim: Claim = VARIABLES) -> Finding:
    return measure_and_judge(environment, claim)


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("home/.bashrc", "export TRITON_INTERPRET=1", "sets TRITON_INTERPRET=1"),
        ("home/.profile", "NCCL_DEBUG=INFO", "sets NCCL_DEBUG=INFO"),
        ("home/.nccl.conf", "NCCL_P2P_DISABLE=1", ".nccl.conf is not empty"),
    ],
)
def test_a_setting_in_a_file_of_the_home_fails(
    site: Site, file: str, line: str, words: str
) -> None:
    site.start_with(CUDA_HOME=CUDA_HOME)

    (site.parent / file).write_text(f"# a comment\n{line}\n")

    fails(judged(), words)


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("site/sitecustomize.py", "x = 1", "sitecustomize.py runs at every start of Python"),
        (f"{VENV_PACKAGES}/leaves.pth", "import os; os._exit(0)", "leaves.pth runs at every start"),
    ],
)
def test_code_of_no_distribution_that_runs_at_every_start_fails(
    site: Site, file: str, line: str, words: str
) -> None:
    site.start_with(CUDA_HOME=CUDA_HOME)

    (site.parent / file).write_text(f"# a comment\n{line}\n")

    fails(judged(), words)


MISLEADING = (
    "BNB_CUDA_VERSION TRITON_INTERPRET TORCHDYNAMO_DISABLE TORCH_COMPILE_DISABLE "
    "NVIDIA_TF32_OVERRIDE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE NCCL_P2P_DISABLE "
    "ACCELERATE_DEEPSPEED_ZERO_STAGE FSDP_VERSION PARALLELISM_CONFIG_TP_SIZE WORLD_SIZE "
    "MASTER_ADDR CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING TRITON_PTXAS_PATH PYTORCH_JIT"
).split()


@pytest.mark.parametrize("name", MISLEADING)
def test_a_variable_that_misleads_fails(site: Site, name: str) -> None:
    site.start_with(CUDA_HOME=CUDA_HOME, **{name: "1"})

    fails(judged(), f"{name}=1 is set")


def test_a_variable_that_changes_no_computation_may_be_set(site: Site) -> None:
    site.start_with(CUDA_HOME=CUDA_HOME, HF_TOKEN="hush")

    says(judged(), "")


def test_a_python_that_starts_with_optimisation_fails(site: Site) -> None:
    site.start_with(CUDA_HOME=CUDA_HOME, PYTHONOPTIMIZE="1")

    fails(judged(), "every `assert`")


def test_a_required_variable_with_another_value_fails(site: Site) -> None:
    site.start_with(CUDA_HOME="/opt/cuda")

    fails(judged(), f"CUDA_HOME is '/opt/cuda', and '{CUDA_HOME}' is expected")


def test_a_settings_file_that_the_suite_has_mounted_over_is_not_taken_for_empty(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start_with(CUDA_HOME=CUDA_HOME)
    user = replace(user_environment.recorded(), hidden=["/etc/ld.so.preload"])
    monkeypatch.setattr(user_environment, "recorded", lambda: user)

    fails(judged(), "/etc/ld.so.preload is not empty: what it holds can't be read here")


def test_a_package_index_that_a_custom_base_names_is_reported(site: Site) -> None:
    site.start_with(CUDA_HOME=CUDA_HOME)
    pip_conf = site.parent / "home" / ".pip" / "pip.conf"
    pip_conf.parent.mkdir()
    pip_conf.write_text("[global]\nindex-url = https://pypi.example/simple\n")
    on_custom_base = {**VARIABLES.expect, "reported_files": [str(pip_conf)]}

    fails(judged(), "pip.conf is not empty")
    finding = judged(replace(VARIABLES, expect=on_custom_base))
    assert finding.status is Status.PASS
    assert f"reported: {pip_conf}" in finding.reason


def test_a_required_variable_may_match_a_denied_pattern(site: Site) -> None:
    site.start_with(NCCL_DEBUG="WARN")

    required = replace(VARIABLES, expect={**VARIABLES.expect, "required": {"NCCL_DEBUG": "WARN"}})
    says(judged(required), "")


def test_a_secret_does_not_stand_in_the_evidence(site: Site) -> None:
    site.start_with(CUDA_HOME=CUDA_HOME, HF_TOKEN="hush")

    evidence = measure(environment, VARIABLES)

    assert evidence["required"] == {"CUDA_HOME": CUDA_HOME}
    assert "hush" not in str(evidence)
