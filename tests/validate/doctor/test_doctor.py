"""From facts to settings: one row a rule, and what is asked of a driver and a torch that may crash."""

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


def settings_of(*gpus: Gpu, image_stack: Stack | None = None) -> dict[str, Setting]:
    advice = advise(machine(*gpus), image_stack or stack())
    assert all(setting.why and setting.source for setting in advice.settings)
    return {setting.name: setting for setting in advice.settings}


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
    settings = settings_of(gpu(capability, name=model))
    values = [settings[name].value for name in ("device", "dtype", "tf32", "attention", "fp8")]
    assert values == ["cuda", dtype, tf32, attention, fp8]


def flash_for(*targets: str) -> Stack:
    return stack(code={"flash-attn": targets})


FLASH_2, FLASH_4 = "flash_attention_2", "flash_attention_4"
WITH_FLASH_4 = stack(packages={"flash-attn-4": "4.0.0b36"})
WITH_UNSLOTH = stack(packages={"flash-attn": "2.8.3", "unsloth": "2026.1", "xformers": "0.0.31"})


@pytest.mark.parametrize(
    ("capabilities", "image_stack", "attention", "why"),
    [
        ([(9, 0)], flash_for("sm_80", "sm_90"), FLASH_2, "with code for 8.0, 9.0"),
        ([(8, 9)], flash_for("sm_80", "sm_90"), FLASH_2, "with code for 8.0, 9.0"),
        ([(12, 0)], flash_for("sm_80", "sm_90"), "sdpa", "code only for 8.0, 9.0"),
        ([(8, 0), (12, 0)], flash_for("sm_80", "sm_90"), "sdpa", "code only for 8.0, 9.0"),
        ([(8, 0), (12, 0)], flash_for("sm_80", "sm_120"), FLASH_2, "with code for 8.0, 12.0"),
        ([(9, 0)], flash_for("sm_80", "sm_120"), "sdpa", "code only for 8.0, 12.0"),
        ([(9, 0)], flash_for(), "sdpa", "no claim says which GPUs"),
        ([(9, 0)], WITH_FLASH_4, FLASH_4, "compiled for this GPU"),
        ([(10, 0)], WITH_FLASH_4, "sdpa", ""),  # its backward hung on Blackwell
        ([(8, 9)], WITH_FLASH_4, "sdpa", ""),  # no backward
        ([(9, 0), (8, 0)], WITH_FLASH_4, "sdpa", ""),
        ([(7, 5)], WITH_UNSLOTH, "xformers", ""),
        ([(7, 0)], WITH_UNSLOTH, "sdpa", ""),
        (
            [(7, 5)],
            stack(packages={"xformers": "0.0.31"}),
            "sdpa",
            "",
        ),  # nothing here would take xformers
        ([(8, 0)], stack(packages={}), "sdpa", "flash-attn is not in this image"),
    ],
)
def test_attention_has_code_for_every_gpu(
    capabilities: list[tuple[int, int]], image_stack: Stack, attention: str, why: str
) -> None:
    setting = settings_of(*map(gpu, capabilities), image_stack=image_stack)["attention"]
    assert setting.value == attention and why in setting.why


def test_the_code_is_read_from_the_images_own_claims(tmp_path: Path) -> None:
    claims = image_claims(ClaimContext(image=image("cu128-torch28"), facts=SOURCES.facts))
    file = tmp_path / "claims.json"
    file.write_text(claims.dumps())
    assert hardware.claimed_code(file)["flash-attn"] == (
        "sm_80",
        "sm_86",
        "sm_90",
        "sm_100",
        "sm_120",
    )
    assert hardware.claimed_code(file)["xformers"][-1] == "compute_120"
    file.write_text("[]")
    assert hardware.claimed_code(file) == hardware.claimed_code(tmp_path / "nothing") == {}


MIG_SLICE = gpu(gigabytes=10, name="A100 MIG 1g.10gb", mig=True)
SPARK = Gpu(name="NVIDIA GB10", capability=(12, 1), memory=int(128.5 * GB), unified=True)
FOREIGN_CACHE = Disk(path="/home/trainer/.cache", holds="downloads", free=500 * GB, writable=False)
OLD_AND_NEW = (gpu((6, 1), 24, "GTX 1080"), gpu((8, 0), 40, "A100"))
HOPPER_AND_TURING = (gpu((9, 0), 80), gpu((7, 5), 16))


@pytest.mark.parametrize(
    ("hardware_", "warning"),
    [
        (machine(), "no GPU"),
        (machine(*OLD_AND_NEW), "has no code for GTX 1080 (sm_61)"),
        (machine(*HOPPER_AND_TURING), "the GPUs differ"),
        (machine(SPARK), "drop_caches"),
        (machine(MIG_SLICE), "MIG slice"),
        (replace(machine(gpu()), shm=64 * 1024**2), "--ipc=host"),
        (
            replace(machine(gpu()), infiniband=True, locked_memory=8 * 1024**2),
            "--ulimit memlock=-1",
        ),
        (
            Hardware(disks=(FOREIGN_CACHE,)),
            "may not write to /home/trainer/.cache, which is for downloads",
        ),
        (Hardware(disks=(FOREIGN_CACHE,)), "`--user $(id -u):$(id -g)`, or one for everybody"),
    ],
)
def test_a_problem_of_the_machine_is_a_warning(hardware_: Hardware, warning: str) -> None:
    assert len([text for text in advise(hardware_, stack()).warnings if warning in text]) == 1


def test_a_machine_without_problems_has_no_warning() -> None:
    assert advise(machine(gpu()), stack()).warnings == ()
    assert advise(replace(machine(gpu()), infiniband=True), stack()).warnings == ()


def test_settings_are_for_the_weakest_gpu_that_torch_has_code_for() -> None:
    assert settings_of(*HOPPER_AND_TURING)["dtype"].value == "float16"
    assert settings_of(*OLD_AND_NEW)["dtype"].value == "bfloat16"
    assert runs_on((), (5, 0)), "targets that are not known"


def test_without_a_gpu_the_settings_are_for_the_cpu() -> None:
    settings = settings_of()
    assert [settings[name].value for name in ("device", "dtype", "attention")] == [
        "cpu",
        "float32",
        "sdpa",
    ]


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


def test_disks_are_those_of_this_folder_and_of_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "not" / "there"))
    (disk,) = hardware.disks()
    assert (disk.path, disk.holds) == (str(tmp_path), "checkpoints and downloads")
    assert 0 < disk.free <= shutil.disk_usage(tmp_path).total
    monkeypatch.setenv("HF_HOME", "/proc/self")
    found = [(one.path, one.holds) for one in hardware.disks()]
    assert found == [(str(tmp_path), "checkpoints"), ("/proc/self", "downloads")]


def test_memory_that_the_cpu_shares_is_shown() -> None:
    facts = {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 128 * GB, "unified": True}
    found = hardware.interpret([], [{"torch": "2.13.0"}, {"gpu": facts}], Hardware(memory=128 * GB))
    assert "1 x NVIDIA GB10, 128.0 GB shared with the CPU, compute capability 12.1" in printed(
        found
    )


def printed(found: hardware.Inspection) -> str:
    return "\n".join(doctor.text(found, advise(found.hardware, found.stack)))


DRIVER = [
    {
        "managed": {
            "driver": "580.65",
            "gpus": [{"name": "H100", "capability": [9, 0], "memory": 80 * GB}],
        }
    },
    {"error": "cuInit answers 803"},
]


def test_torchs_own_view_counts_where_there_is_torch() -> None:
    torch = [
        {"torch": "2.7.1", "cuda": "12.6"},
        {"cuda_error": "RuntimeError: Error 803"},
        {"package": ["xformers", "1"]},
    ]
    found = hardware.interpret(DRIVER, torch, Hardware())
    assert (found.hardware.gpus, found.hardware.driver, found.stack.packages) == (
        (),
        "580.65",
        {"xformers": "1"},
    )
    lines = printed(found)
    assert (
        "hint: The loader found a libcuda.so of the image" in lines and "there is no GPU" in lines
    )


def test_the_drivers_view_counts_where_torch_can_not_be_imported() -> None:
    visible = (
        "2",
        "3",
    )  # CUDA_VISIBLE_DEVICES, by which torch numbers GPUs and the driver does not
    found = hardware.interpret(
        DRIVER, [{"torch_error": "ImportError: broken"}], Hardware(visible=visible)
    )
    assert [one.name for one in found.hardware.gpus] == ["H100"] and found.hardware.visible == ()
    assert "ImportError: broken" in found.troubles
    facts = {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "capability": [8, 0], "memory": 5 * GB}
    found = hardware.interpret(
        DRIVER, [{"torch": "2.7.1"}, {"gpu": facts}], Hardware(visible=visible)
    )
    assert found.hardware.gpus[0].mig and found.hardware.visible == visible


_TORCH = """
from types import SimpleNamespace
__version__, version = "2.8.0", SimpleNamespace(cuda="12.8")
gpu = SimpleNamespace(name="B300", major=10, minor=3, total_memory=1 << 38)
cuda = SimpleNamespace(init=int, device_count=lambda: 1, get_device_properties=lambda _: gpu)
"""


@pytest.mark.parametrize(
    ("own", "named", "warned"),
    [
        ({"ptxas": "90a 100 120"}, {}, True),
        ({"ptxas": "90a 100", "ptxas-blackwell": "100 103"}, {}, False),
        ({"ptxas": "90a 103", "ptxas-blackwell": "100"}, {"TRITON_PTXAS_PATH": "103"}, True),
        ({"ptxas": "90a 100"}, {"TRITON_PTXAS_PATH": "103"}, False),
        ({}, {}, False),
        ({"ptxas": ""}, {}, False),
    ],
)
def test_a_gpu_that_tritons_ptxas_does_not_know_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: dict[str, str],
    named: dict[str, str],
    warned: bool,
) -> None:
    """By Triton's own rule each variable counts before its file, the Blackwell one first."""
    folder = tmp_path / "triton" / "backends" / "nvidia" / "bin"
    folder.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").touch()
    (tmp_path / "torch.py").write_text(_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    files = {str(folder / name): archs for name, archs in own.items()}
    files |= {str(tmp_path / variable): archs for variable, archs in named.items()}
    for variable in named:
        monkeypatch.setenv(variable, str(tmp_path / variable))
    for file, archs in files.items():
        Path(file).write_text(
            '#!/bin/sh\necho "' + ",".join(f"'sm_{arch}'" for arch in archs.split()) + '"\n'
        )
        Path(file).chmod(0o755)
    found = hardware.interpret(
        [],
        hardware.ask([sys.executable, str(ROOT / "validate"), "doctor-torch"], "torch"),
        Hardware(),
    )
    assert [one.name for one in found.hardware.gpus] == ["B300"]
    warnings = advise(found.hardware, found.stack).warnings
    assert any("Triton's ptxas does not know B300 (sm_103)" in one for one in warnings) is warned


def test_a_crash_of_torch_is_a_finding_and_not_an_end() -> None:
    crashing = "import os; from validate.doctor.answers import report; report(torch='2.7.1'); os.kill(os.getpid(), 11)"
    answers = hardware.ask([sys.executable, "-c", crashing], "torch")
    assert answers[0] == {"torch": "2.7.1"} and "status -11" in answers[1]["error"]


def run(suite: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(suite), "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_on_a_machine_with_nothing_it_says_so_and_ends_well(tmp_path: Path) -> None:
    done = run(suite_folder.lay_out(tmp_path), "--json")
    assert done.returncode == 0 and not done.stderr
    data = json.loads(done.stdout)
    assert {"hardware", "stack", "settings", "warnings", "troubles", "hints"} == data.keys()
    assert {setting["name"] for setting in data["settings"]} == {"device", "dtype", "attention"}


def test_wrong_arguments_end_with_two() -> None:
    done = run(ROOT / "validate", "--model-size", "7b")
    assert done.returncode == 2 and "--model-size" in done.stderr and "Traceback" not in done.stderr
