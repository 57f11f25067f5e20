"""doctor: which settings and warnings follow from facts, and how the facts are found."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support import suite_folder
from tests.support.checkout import ROOT
from tests.support.machines import gpu, machine, stack
from tests.support.sources import SOURCES, image
from validate.doctor import hardware
from validate.doctor import main as doctor
from validate.doctor.advice import GB, Disk, Gpu, Hardware, Setting, Stack, advise, runs_on
from validate.doctor.hardware import Inspection


def settings_for(*gpus: Gpu, image_stack: Stack | None = None) -> dict[str, Setting]:
    """Return the settings by name, for a machine with these GPUs. Each must have its reason."""
    advice = advise(machine(*gpus), image_stack or stack())
    assert all(setting.why and setting.source for setting in advice.settings)
    return {setting.name: setting for setting in advice.settings}


def test_facts_fit_the_terminal_and_what_serves_without_docker_comes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine has no GPU: two errors, whose hints both say `--gpus all`."""
    monkeypatch.setenv("COLUMNS", "80")
    packages = {f"package-{number}": "1.2.3" for number in range(8)}
    inspection = Inspection(
        hardware=machine(),
        stack=replace(stack(), packages=packages),
        troubles=(
            "libcuda.so.1: cannot open shared object file: No such file or directory",
            "RuntimeError: Found no NVIDIA driver on your system.",
        ),
    )

    text = "\n".join(doctor.text(inspection, advise(inspection.hardware, inspection.stack)))

    # Below the facts, an address may be longer than a line.
    facts = text.partition("\n\n")[0].splitlines()
    assert max(map(len, facts)) <= 80
    unwrapped = " ".join(text.split())
    assert "hint: " in unwrapped
    assert unwrapped.count("Without Docker, in place of `--gpus`") == 1


# Settings.


@pytest.mark.parametrize(
    ("model", "capability", "dtype", "tf32", "attention", "fp8"),
    [
        ("H100", (9, 0), "bfloat16", "yes", "flash_attention_2", "yes"),
        ("A100", (8, 0), "bfloat16", "yes", "flash_attention_2", "no"),
        ("RTX 4090", (8, 9), "bfloat16", "yes", "flash_attention_2", "inference only"),
        ("T4", (7, 5), "float16", "no", "sdpa", "no"),
        ("V100", (7, 0), "float16", "no", "sdpa", "no"),
        ("B200", (10, 0), "bfloat16", "yes", "flash_attention_2", "yes"),
        ("RTX 5090", (12, 0), "bfloat16", "yes", "flash_attention_2", "yes"),
    ],
)
def test_settings_follow_from_the_compute_capability(
    model: str, capability: tuple[int, int], dtype: str, tf32: str, attention: str, fp8: str
) -> None:
    settings = settings_for(gpu(capability, name=model))

    values = [settings[name].value for name in ("device", "dtype", "tf32", "attention", "fp8")]
    assert values == ["cuda", dtype, tf32, attention, fp8]


def with_flash_attn_for(*targets: str) -> Stack:
    """Return an image whose flash-attn 2 has code for these targets, as its claims say."""
    return stack(code={"flash-attn": targets})


FLASH_2, FLASH_4 = "flash_attention_2", "flash_attention_4"
FLASH_FOR_80_90 = with_flash_attn_for("sm_80", "sm_90")
FLASH_FOR_80_120 = with_flash_attn_for("sm_80", "sm_120")
WITH_FLASH_4 = stack(packages={"flash-attn-4": "4.0.0b36"})
WITH_UNSLOTH = stack(packages={"flash-attn": "2.8.3", "unsloth": "2026.1", "xformers": "0.0.31"})
WITH_XFORMERS_ALONE = stack(packages={"xformers": "0.0.31"})
WITH_NOTHING = stack(packages={})


@pytest.mark.parametrize(
    ("capabilities", "image_stack", "attention", "reason"),
    [
        # flash-attn 2 needs code for each GPU.
        ([(9, 0)], FLASH_FOR_80_90, FLASH_2, "with code for 8.0, 9.0"),
        ([(8, 9)], FLASH_FOR_80_90, FLASH_2, "with code for 8.0, 9.0"),
        ([(12, 0)], FLASH_FOR_80_90, "sdpa", "code only for 8.0, 9.0"),
        ([(8, 0), (12, 0)], FLASH_FOR_80_90, "sdpa", "code only for 8.0, 9.0"),
        ([(8, 0), (12, 0)], FLASH_FOR_80_120, FLASH_2, "with code for 8.0, 12.0"),
        ([(9, 0)], FLASH_FOR_80_120, "sdpa", "code only for 8.0, 12.0"),
        ([(9, 0)], with_flash_attn_for(), "sdpa", "no claim says which GPUs"),
        ([(8, 0)], WITH_NOTHING, "sdpa", "flash-attn is not in this image"),
        # flash-attn 4 is for Hopper: its backward hung on Blackwell, and older GPUs have none.
        ([(9, 0)], WITH_FLASH_4, FLASH_4, "compiled for this GPU"),
        ([(10, 0)], WITH_FLASH_4, "sdpa", ""),
        ([(8, 9)], WITH_FLASH_4, "sdpa", ""),
        ([(9, 0), (8, 0)], WITH_FLASH_4, "sdpa", ""),
        # xformers is for Turing and newer, and only unsloth takes it.
        ([(7, 5)], WITH_UNSLOTH, "xformers", ""),
        ([(7, 0)], WITH_UNSLOTH, "sdpa", ""),
        ([(7, 5), (9, 0)], WITH_UNSLOTH, "xformers", ""),
        # xformers has no code for Blackwell, whatever the other GPUs are.
        ([(7, 5), (10, 0)], WITH_UNSLOTH, "sdpa", ""),
        ([(7, 5)], WITH_XFORMERS_ALONE, "sdpa", ""),
    ],
)
def test_attention_is_the_fastest_that_works_on_every_gpu(
    capabilities: list[tuple[int, int]], image_stack: Stack, attention: str, reason: str
) -> None:
    gpus = [gpu(capability) for capability in capabilities]

    setting = settings_for(*gpus, image_stack=image_stack)["attention"]

    assert setting.value == attention
    assert reason in setting.why


OLD_AND_NEW = (gpu((6, 1), 24, "GTX 1080"), gpu((8, 0), 40, "A100"))
"""torch has code for the second only."""
HOPPER_AND_TURING = (gpu((9, 0), 80), gpu((7, 5), 16))


def test_settings_are_for_the_weakest_gpu_that_torch_has_code_for() -> None:
    assert settings_for(*HOPPER_AND_TURING)["dtype"].value == "float16"
    assert settings_for(*OLD_AND_NEW)["dtype"].value == "bfloat16"


def test_a_torch_whose_targets_are_not_known_runs_on_every_gpu() -> None:
    assert runs_on((), (5, 0))


def test_without_a_gpu_the_settings_are_for_the_cpu() -> None:
    settings = settings_for()

    values = {name: settings[name].value for name in ("device", "dtype", "attention")}
    assert values == {"device": "cpu", "dtype": "float32", "attention": "sdpa"}


@pytest.mark.parametrize(
    ("visible", "value"), [((), "1"), (("2", "3"), "3"), (("GPU-aa", "GPU-bb"), "GPU-bb")]
)
def test_a_gpu_without_code_is_left_out_by_the_name_that_the_variable_has_for_it(
    visible: tuple[str, ...], value: str
) -> None:
    """Of CUDA_VISIBLE_DEVICES=2,3 the second is 3: `1` would be another GPU."""
    advice = advise(replace(machine(*OLD_AND_NEW), visible=visible), stack())

    values = {setting.name: setting.value for setting in advice.settings}
    assert values["CUDA_VISIBLE_DEVICES"] == value


# Warnings.

MIG_SLICE = gpu(gigabytes=10, name="A100 MIG 1g.10gb", mig=True)
SPARK = Gpu(name="NVIDIA GB10", capability=(12, 1), memory=int(128.5 * GB), unified=True)
FOREIGN_CACHE = Disk(path="/home/trainer/.cache", holds="downloads", free=500 * GB, writable=False)

MIB = 1024**2


@pytest.mark.parametrize(
    ("hardware_", "warning"),
    [
        (machine(), "no GPU"),
        (machine(*OLD_AND_NEW), "has no code for GTX 1080 (sm_61)"),
        (machine(*HOPPER_AND_TURING), "the GPUs differ"),
        (machine(SPARK), "drop_caches"),
        (machine(MIG_SLICE), "MIG slice"),
        (replace(machine(gpu()), shm=64 * MIB), "--ipc=host"),
        (replace(machine(gpu()), infiniband=True, locked_memory=8 * MIB), "--ulimit memlock=-1"),
        (
            Hardware(disks=(FOREIGN_CACHE,)),
            "may not write to /home/trainer/.cache, which is for downloads",
        ),
        (Hardware(disks=(FOREIGN_CACHE,)), "`--user $(id -u):$(id -g)`, or one for everybody"),
    ],
)
def test_each_problem_of_the_machine_is_one_warning(hardware_: Hardware, warning: str) -> None:
    warnings = advise(hardware_, stack()).warnings

    assert len([text for text in warnings if warning in text]) == 1


def test_a_machine_without_problems_has_no_warning() -> None:
    healthy = machine(gpu())

    assert advise(healthy, stack()).warnings == ()
    assert advise(replace(healthy, infiniband=True), stack()).warnings == ()


# How the facts are found.


def test_flash_attns_targets_are_those_of_the_images_own_claims(tmp_path: Path) -> None:
    claims = image_claims(ClaimContext(image=image("cu128-torch28"), facts=SOURCES.facts))
    file = tmp_path / "claims.json"
    file.write_text(claims.dumps())

    code = hardware.claimed_code(file)

    assert code["flash-attn"] == ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    assert code["xformers"][-1] == "compute_120"


def test_without_readable_claims_no_targets_are_known(tmp_path: Path) -> None:
    damaged = tmp_path / "claims.json"
    damaged.write_text("[]")

    assert hardware.claimed_code(damaged) == {}
    assert hardware.claimed_code(tmp_path / "nothing") == {}


def test_one_disk_for_this_folder_and_downloads_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "not" / "there"))

    (disk,) = hardware.disks()

    assert (disk.path, disk.holds) == (str(tmp_path), "checkpoints and downloads")
    assert 0 < disk.free <= shutil.disk_usage(tmp_path).total


def test_another_disk_for_downloads_is_listed_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", "/proc/self")

    disks = [(disk.path, disk.holds) for disk in hardware.disks()]

    assert disks == [(str(tmp_path), "checkpoints"), ("/proc/self", "downloads")]


def printed(inspection: hardware.Inspection) -> str:
    """Return what doctor prints for people."""
    return "\n".join(doctor.text(inspection, advise(inspection.hardware, inspection.stack)))


def test_memory_that_the_gpu_shares_with_the_cpu_is_shown() -> None:
    facts = {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 128 * GB, "unified": True}

    inspection = hardware.interpret(
        [], [{"torch": "2.13.0"}, {"gpu": facts}], Hardware(memory=128 * GB)
    )

    shown = "1 x NVIDIA GB10, 128.0 GB shared with the CPU, compute capability 12.1"
    assert shown in printed(inspection)


# The driver's facts: NVML sees a GPU, and CUDA does not work.
DRIVER = [
    {
        "managed": {
            "driver": "580.65",
            "gpus": [{"name": "H100", "capability": [9, 0], "memory": 80 * GB}],
        }
    },
    {"error": "cuInit answers 803"},
]
# CUDA_VISIBLE_DEVICES, by which torch numbers GPUs and the driver does not.
VISIBLE = ("2", "3")


TORCH_WITHOUT_CUDA = [
    {"torch": "2.7.1", "cuda": "12.6"},
    {"cuda_error": "RuntimeError: Error 803"},
    {"package": ["xformers", "1"]},
]


def test_if_torch_can_be_imported_the_gpus_are_those_that_it_sees() -> None:
    inspection = hardware.interpret(DRIVER, TORCH_WITHOUT_CUDA, Hardware())

    assert inspection.hardware.gpus == ()
    assert inspection.hardware.driver == "580.65"
    assert inspection.stack.packages == {"xformers": "1"}


def test_errors_of_the_driver_are_printed_with_a_hint() -> None:
    lines = printed(hardware.interpret(DRIVER, TORCH_WITHOUT_CUDA, Hardware()))

    assert "hint: The libcuda.so that is loaded does not belong" in lines
    assert "there is no GPU" in lines


def test_if_torch_cannot_be_imported_the_gpus_are_those_of_the_driver() -> None:
    torch = [{"torch_error": "ImportError: broken"}]

    inspection = hardware.interpret(DRIVER, torch, Hardware(visible=VISIBLE))

    assert [gpu.name for gpu in inspection.hardware.gpus] == ["H100"]
    assert inspection.hardware.visible == ()
    assert "ImportError: broken" in inspection.troubles


def test_a_mig_slice_is_known_by_its_name() -> None:
    facts = {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "capability": [8, 0], "memory": 5 * GB}
    torch = [{"torch": "2.7.1"}, {"gpu": facts}]

    inspection = hardware.interpret(DRIVER, torch, Hardware(visible=VISIBLE))

    assert inspection.hardware.gpus[0].mig
    assert inspection.hardware.visible == VISIBLE


TORCH_WITH_A_B300 = """
from types import SimpleNamespace
__version__, version = "2.8.0", SimpleNamespace(cuda="12.8")
gpu = SimpleNamespace(name="B300", major=10, minor=3, total_memory=1 << 38)
cuda = SimpleNamespace(init=int, device_count=lambda: 1, get_device_properties=lambda _: gpu)
"""


def write_assembler(file: Path, targets: str) -> None:
    """Write a ptxas whose help lists these targets: `90a 100`."""
    listed = ",".join(f"'sm_{target}'" for target in targets.split())
    file.write_text(f'#!/bin/sh\necho "{listed}"\n')
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("brought", "named_by_variable", "is_warned"),
    [
        pytest.param({"ptxas": "90a 100 120"}, {}, True, id="ptxas without 103"),
        pytest.param(
            {"ptxas": "90a 100", "ptxas-blackwell": "100 103"}, {}, False, id="blackwell's first"
        ),
        pytest.param(
            {"ptxas": "90a 103", "ptxas-blackwell": "100"},
            {"TRITON_PTXAS_PATH": "103"},
            True,
            id="blackwell's before a variable for the other",
        ),
        pytest.param(
            {"ptxas": "90a 100"}, {"TRITON_PTXAS_PATH": "103"}, False, id="a variable first"
        ),
        pytest.param({}, {}, False, id="no ptxas"),
        pytest.param({"ptxas": ""}, {}, False, id="no list of targets"),
    ],
)
def test_a_gpu_that_tritons_ptxas_does_not_know_is_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    brought: dict[str, str],
    named_by_variable: dict[str, str],
    is_warned: bool,
) -> None:
    """By Triton's own rule each variable counts before its file, the Blackwell one first."""
    folder = tmp_path / "triton" / "backends" / "nvidia" / "bin"
    folder.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").touch()
    (tmp_path / "torch.py").write_text(TORCH_WITH_A_B300)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name, targets in brought.items():
        write_assembler(folder / name, targets)
    for variable, targets in named_by_variable.items():
        write_assembler(tmp_path / variable, targets)
        monkeypatch.setenv(variable, str(tmp_path / variable))

    torch = hardware.ask([sys.executable, str(ROOT / "validate"), "doctor-torch"], "torch")
    inspection = hardware.interpret([], torch, Hardware())
    warnings = advise(inspection.hardware, inspection.stack).warnings

    assert [gpu.name for gpu in inspection.hardware.gpus] == ["B300"]
    warning = "Triton's ptxas does not know B300 (sm_103)"
    assert any(warning in text for text in warnings) is is_warned


def test_a_crash_of_torch_leaves_its_facts_and_is_an_error() -> None:
    crashing_program = (
        "import os; from validate.doctor.answers import report; "
        "report(torch='2.7.1'); os.kill(os.getpid(), 11)"
    )

    facts = hardware.ask([sys.executable, "-c", crashing_program], "torch")

    assert facts[0] == {"torch": "2.7.1"}
    assert "status -11" in facts[1]["error"]


# The program.


def run_doctor(suite: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(suite), "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_on_a_machine_with_nothing_it_prints_settings_for_the_cpu_and_ends_with_0(
    tmp_path: Path,
) -> None:
    process = run_doctor(suite_folder.lay_out(tmp_path), "--json")

    assert process.returncode == 0
    assert not process.stderr
    data = json.loads(process.stdout)
    assert data.keys() == {"hardware", "stack", "settings", "warnings", "troubles", "hints"}
    assert {setting["name"] for setting in data["settings"]} == {"device", "dtype", "attention"}


def test_unknown_arguments_end_with_2_and_are_named() -> None:
    process = run_doctor(ROOT / "validate", "--model-size", "7b")

    assert process.returncode == 2
    assert "--model-size" in process.stderr
    assert "Traceback" not in process.stderr
