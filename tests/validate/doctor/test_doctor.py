"""From hardware to settings: the rules as a table, and that more never gets a more frugal setting."""

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support.cases import cases
from tests.support.checkout import ROOT
from tests.support.machines import gpu, machine, stack
from tests.support.sources import SOURCES, image
from validate.doctor import hardware, snippets
from validate.doctor import main as doctor
from validate.doctor.advice import (
    FRAMEWORKS,
    GB,
    Advice,
    Disk,
    Goal,
    Gpu,
    Hardware,
    Level,
    Stack,
    advise,
    runs_on,
)
from validate.environment import ALLOCATOR


def settings(*gpus: Gpu, framework: str = "transformers", with_: Stack | None = None, **goal: Any) -> Advice:
    return advise(machine(*gpus), with_ or stack(), Goal(framework=framework, **goal))


FLASH, FUSED = "flash_attention_2", "adamw_torch_fused"


@pytest.mark.parametrize(("card", "capability", "gigabytes", "expected"), cases(__file__, "cards"))
def test_rules_by_card(card: str, capability: tuple[int, int], gigabytes: float, expected: list[object]) -> None:
    found = settings(gpu(tuple(capability), gigabytes, card))
    names = ("dtype", "tf32", "attention", "fp8", "load_in_4bit", "optimizer", "batch_size", "gradient_accumulation")
    assert [found[name] for name in names] == expected
    assert all(setting.why and setting.source for setting in found.settings)


def code(*targets: str) -> dict[str, Any]:
    return {"with_": stack(code={"flash-attn": targets})}


BARE, FOURTH = {"with_": stack(packages={})}, {"with_": stack(packages={"flash-attn-4": "4.0.0b36"})}
UNSLOTH, AXOLOTL = {"framework": "unsloth"}, {"framework": "axolotl"}
EIGHT, FOUR, H200 = [gpu(gigabytes=24)] * 8, [gpu((8, 9), 25.4, "RTX 4090")] * 4, gpu((8, 0), 141, "H200")
FSDP, ZERO3 = {"strategy": "fsdp"}, {"strategy": "deepspeed"}


@pytest.mark.parametrize(
    ("gpus", "given_", "name", "value", "why"),
    [
        ([gpu((9, 0))], code("sm_80", "sm_90"), "attention", FLASH, "with code for 8.0, 9.0"),
        ([gpu((8, 9))], code("sm_80", "sm_90"), "attention", FLASH, "with code for 8.0, 9.0"),
        ([gpu((12, 0))], code("sm_80", "sm_90"), "attention", "sdpa", "has code for 8.0, 9.0 alone"),
        ([gpu((8, 0)), gpu((12, 0))], code("sm_80", "sm_90"), "attention", "sdpa", "has code for 8.0, 9.0 alone"),
        ([gpu((8, 0)), gpu((12, 0))], code("sm_80", "sm_120"), "attention", FLASH, "with code for 8.0, 12.0"),
        ([gpu((9, 0))], code("sm_80", "sm_120"), "attention", "sdpa", "has code for 8.0, 12.0 alone"),
        ([gpu((9, 0))], code(), "attention", "sdpa", "no claim for which GPUs its flash-attn has code"),
        ([gpu((9, 0))], FOURTH, "attention", "flash_attention_4", "compiled for this GPU"),
        ([gpu((10, 0))], FOURTH, "attention", "sdpa", ""),  # no run of ours
        ([gpu((8, 9))], FOURTH, "attention", "sdpa", ""),  # no backward
        ([gpu((9, 0)), gpu((8, 0))], FOURTH, "attention", "sdpa", ""),
        ([gpu((7, 5), 16)], UNSLOTH, "attention", "xformers", ""),
        ([gpu((7, 0), 16)], UNSLOTH, "attention", "sdpa", ""),
        ([gpu()], {**AXOLOTL, **BARE}, "attention", "sdpa", ""),
        ([gpu(gigabytes=8)], BARE, "load_in_4bit", False, "bitsandbytes is not in this image"),
        ([gpu(gigabytes=8)], BARE, "optimizer", FUSED, ""),
        # the reason for 4 bits is the one that holds
        ([gpu(gigabytes=8)], {"billions": 1}, "load_in_4bit", True, "8 GB a GPU have no room for two sequences"),
        ([gpu(gigabytes=4)], {"billions": 1}, "load_in_4bit", True, "want 5 GB, there are 4"),
        # what GPUs hold together decides when they share a model
        (EIGHT, {**FSDP, "billions": 30}, "load_in_4bit", False, "192 GB holds a 16-bit 30b model"),
        (EIGHT, {**FSDP, "billions": 30}, "optimizer", FUSED, ""),
        (EIGHT, {**FSDP, "billions": 70}, "load_in_4bit", False, ""),
        (EIGHT, {**FSDP, **AXOLOTL, "billions": 70}, "load_in_4bit", True, ""),
        # 4 x 25 GB are 101 GB for the weights of a 7b model; each of them keeps its own sequences' activations
        *((FOUR, strategy, "gradient_checkpointing", True, "") for strategy in (FSDP, ZERO3)),
        *((FOUR, strategy, "load_in_4bit", False, "102 GB holds") for strategy in (FSDP, ZERO3)),
        *((FOUR, strategy, "batch_size", 2, "25 GB a GPU") for strategy in (FSDP, ZERO3)),
        ([H200], {}, "gradient_checkpointing", False, ""),
        ([H200], {}, "batch_size", 4, ""),
    ],
)
def test_a_setting_follows_from_machine_and_goal(
    gpus: list[Gpu], given_: Any, name: str, value: object, why: str
) -> None:
    (found,) = (setting for setting in settings(*gpus, **given_).settings if setting.name == name)
    assert found.value == value and why in found.why


def test_the_code_is_read_from_the_images_own_claims(tmp_path: Path) -> None:
    claims = image_claims(ClaimContext(image=image("cu128-torch28"), facts=SOURCES.facts))
    file = tmp_path / "claims.json"
    file.write_text(claims.dumps())
    assert hardware.claimed_code(file)["flash-attn"] == ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    assert hardware.claimed_code(file)["xformers"][-1] == "compute_120"
    file.write_text("[]")
    assert hardware.claimed_code(file) == hardware.claimed_code(tmp_path / "nothing") == {}


NEW = "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    ("torch", "variable"),
    [("2.8.0", "PYTORCH_CUDA_ALLOC_CONF"), ("2.9.1", "PYTORCH_CUDA_ALLOC_CONF"), ("2.10.0", NEW), ("2.1", "")],
)
def test_the_allocators_variable_changes_its_name(torch: str, variable: str) -> None:
    assert str(settings(gpu(), with_=stack(torch=torch))["allocator"]).partition("=")[0] == variable


SLICE = Hardware(gpus=(gpu(gigabytes=10, name="A100 MIG 1g.10gb", mig=True),), shm=64 * 1024**2)
FOREIGN = Hardware(disks=(Disk(path="/home/trainer/.cache", holds="downloads", free=500 * GB, writable=False),))
OLD, MIXED = (gpu((6, 1), 24, "GTX 1080"), gpu((8, 0), 40, "A100")), (gpu((9, 0), 80), gpu((7, 5), 16))


@pytest.mark.parametrize(
    ("there", "goal", "told"),
    [
        (machine(gpu(gigabytes=24)), {"billions": 70}, "does not fit"),
        (machine(*EIGHT), {**FSDP, "billions": 70}, "--for axolotl"),
        (machine(), {}, "no GPU"),
        (machine(*OLD), {}, "GTX 1080 (sm_61)"),
        (machine(*MIXED), {}, "differ"),
        (SLICE, {}, "--ipc=host"),
        (SLICE, {}, "MIG"),
        (FOREIGN, {}, "/home/trainer/.cache, for downloads, is not this user's to write to"),
        (FOREIGN, {}, "`--user $(id -u):$(id -g)`, or one for everybody (`install -d -m 1777 FOLDER`)"),
    ],
)
def test_what_stands_in_the_way_is_told(there: Hardware, goal: Any, told: str) -> None:
    assert len([one for one in advise(there, stack(), Goal(**goal)).warnings if told in one]) == 1


def test_settings_are_for_the_weakest_gpu_that_torch_has_code_for_or_the_cpu() -> None:
    found = settings()
    assert (found["device"], found["dtype"], found["load_in_4bit"]) == ("cpu", "float32", False)
    assert [one.name for one in settings(*OLD).gpus] == ["A100"]
    found = settings(*MIXED)
    assert (found["dtype"], found["load_in_4bit"], found["batch_size"]) == ("float16", True, 2)
    assert (found.strategy, found["strategy"]) == ("ddp", "ddp")
    assert runs_on((), (5, 0)), "targets that are not known"


CAPABILITIES = st.sampled_from([(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
ROOM = st.floats(1, 300)
SIZES = st.floats(0.1, 100)
ANY_FRAMEWORK = st.sampled_from(FRAMEWORKS)


@given(CAPABILITIES, ROOM, ROOM, SIZES, SIZES, ANY_FRAMEWORK)
def test_more_memory_or_a_smaller_model_never_gets_a_more_frugal_setting(
    capability: tuple[int, int], one: float, other: float, size: float, another: float, framework: str
) -> None:
    def frugal(room: float, billions: float) -> tuple[int, ...]:
        """Larger is more frugal, item by item."""
        found = settings(gpu(capability, room), billions=billions, framework=framework)
        others = (found["load_in_4bit"], found["optimizer"] == "adamw_8bit", found["gradient_checkpointing"])
        return (-int(found.level), *map(bool, others), -int(found["batch_size"]))

    for tight, ample in (
        (frugal(min(one, other), size), frugal(max(one, other), size)),
        (frugal(one, max(size, another)), frugal(one, min(size, another))),
    ):
        assert all(after <= before for before, after in zip(tight, ample, strict=True))
    less, more = (advise(Hardware(memory=int(room * GB)), stack(), Goal()) for room in sorted((one, other)))
    assert more.level >= less.level and more["load_in_4bit"] <= less["load_in_4bit"], "of a machine without a GPU"


@given(st.lists(st.tuples(CAPABILITIES, ROOM), min_size=1, max_size=8), SIZES)
def test_an_optimizer_step_takes_about_eight_sequences_whatever_the_gpus(
    cards: list[tuple[tuple[int, int], float]], billions: float
) -> None:
    found = settings(*(gpu(capability, room) for capability, room in cards), billions=billions)
    at_once = int(found["batch_size"]) * len(found.gpus)
    step = at_once * int(found["gradient_accumulation"])
    assert 4 < step <= 8 or step == at_once > 8


@pytest.mark.parametrize(("count", "gigabytes", "billions", "goal", "expected"), cases(__file__, "shared"))
def test_a_model_that_fits_on_no_gpu_is_shared_by_all(
    count: int, gigabytes: float, billions: float, goal: dict[str, Any], expected: str
) -> None:
    found = settings(*[gpu(gigabytes=gigabytes)] * count, billions=billions, **goal)
    assert found.strategy == expected
    asked = goal.get("strategy")
    assert any("not possible" in warning for warning in found.warnings) == (asked not in (None, expected))
    without = settings(gpu(), gpu(), strategy="deepspeed", with_=stack(packages={}))
    assert without.strategy == "ddp" and "deepspeed is not in this image" in " ".join(without.warnings)


@pytest.mark.parametrize(("billions", "gigabytes", "checkpointing", "batch"), cases(__file__, "fits"))
def test_logits_and_activations_must_fit_beside_the_weights(
    billions: float, gigabytes: float, checkpointing: bool, batch: int
) -> None:
    found = settings(gpu(gigabytes=gigabytes), billions=billions)
    assert (found["gradient_checkpointing"], found["batch_size"]) == (checkpointing, batch)


@pytest.mark.parametrize(
    ("mask", "expected"), [((), "1"), (("2", "3"), "3"), (("GPU-aa", "GPU-bb"), "GPU-bb")], ids=str
)
def test_a_gpu_is_named_as_the_variable_that_is_set_names_it(mask: tuple[str, ...], expected: str) -> None:
    """Of CUDA_VISIBLE_DEVICES=2,3 the second is 3: `1` would be somebody else's."""
    there = replace(machine(gpu(gigabytes=16), gpu(gigabytes=80)), mask=mask)
    found = advise(there, stack(), Goal(strategy="single"))
    assert found.visible == (expected,)
    assert f"export CUDA_VISIBLE_DEVICES={expected}\n" in snippets.snippet(found, stack())[1]


@pytest.mark.parametrize(
    ("gpus", "free", "told"), [(0, 49, "50"), (1, 49, "50"), (1, 51, ""), (2, 99, "100"), (2, 101, "")]
)
def test_a_disk_that_is_too_small_is_told(gpus: int, free: float, told: str) -> None:
    warnings = advise(machine(*[gpu()] * gpus, free=free), stack(), Goal()).warnings
    said = [warning for warning in warnings if "/workspace has" in warning]
    assert [f"{told} GB or more" in warning for warning in said] == ([True] if told else [])


def test_disks_are_those_of_this_folder_and_of_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "not" / "there"))
    (disk,) = hardware._disks()
    assert (disk.path, disk.holds) == (str(tmp_path), "checkpoints and downloads")
    assert 0 < disk.free <= shutil.disk_usage(tmp_path).total
    monkeypatch.setenv("HF_HOME", "/proc/self")
    found = [(one.path, one.holds) for one in hardware._disks()]
    assert found == [(str(tmp_path), "checkpoints"), ("/proc/self", "downloads")]


def spark(container: float, name: str = "NVIDIA GB10") -> Advice:
    """Of a DGX Spark, whose container may use some GB of its 128.5."""
    shared = Gpu(name=name, capability=(12, 1), memory=int(128.5 * GB), unified=True)
    return advise(replace(machine(shared), memory=int(container * GB)), stack(archs=("sm_120",)), Goal(billions=7))


def test_shared_memory_counts_as_far_as_the_container_may_use_it_less_what_the_machine_needs() -> None:
    assert [round(spark(size).gpus[0].memory / GB, 1) for size in (128.5, 32, 4)] == [120.5, 24, 0]
    assert [spark(size)["load_in_4bit"] for size in (128.5, 32)] == [False, True]
    assert spark(4).level is Level.OVERFULL
    own = settings(gpu((12, 0), 128.5, "own"))
    assert own.gpus[0].memory == int(128.5 * GB), "more than the machine's 64 GB: it has its own"


def test_shared_memory_is_told() -> None:
    (told,) = [warning for warning in spark(128.5).warnings if "shares its memory" in warning]
    assert "count on 120 GB" in told and "drop_caches" in told
    assert not [warning for warning in settings(gpu()).warnings if "shares its memory" in warning]
    facts = {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 128 * GB, "unified": True}
    found = hardware.interpret([], [{"torch": "2.13.0"}, {"gpu": facts}], Hardware(memory=128 * GB))
    lines = "\n".join(doctor.text(found, advise(found.hardware, found.stack, Goal())))
    assert "1 x NVIDIA GB10, 128.0 GB shared with the CPU, compute capability 12.1" in lines


DRIVER = [
    {"managed": {"driver": "580.65", "gpus": [{"name": "H100", "capability": [9, 0], "memory": 80 * GB}]}},
    {"error": "cuInit answers 803"},
]


def test_torchs_own_view_counts_where_there_is_torch() -> None:
    torch = [
        {"torch": "2.7.1", "cuda": "12.6"},
        {"cuda_error": "RuntimeError: Error 803"},
        {"package": ["xformers", "1"]},
    ]
    found = hardware.interpret(DRIVER, torch, Hardware())
    assert (found.hardware.gpus, found.hardware.driver, found.stack.packages) == ((), "580.65", {"xformers": "1"})
    lines = "\n".join(doctor.text(found, advise(found.hardware, found.stack, Goal())))
    assert "hint: The loader found a libcuda.so of the image" in lines and "there is no GPU to train on" in lines


def test_the_drivers_view_counts_where_torch_can_not_be_imported() -> None:
    mask = ("2", "3")  # CUDA_VISIBLE_DEVICES, by which torch numbers GPUs and the driver does not
    found = hardware.interpret(DRIVER, [{"torch_error": "ImportError: broken"}], Hardware(mask=mask))
    assert [one.name for one in found.hardware.gpus] == ["H100"] and found.hardware.mask == ()
    assert "ImportError: broken" in found.troubles
    facts = {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "capability": [8, 0], "memory": 5 * GB}
    found = hardware.interpret(DRIVER, [{"torch": "2.7.1"}, {"gpu": facts}], Hardware(mask=mask))
    assert found.hardware.gpus[0].mig and found.hardware.mask == mask


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, str], named: dict[str, str], warned: bool
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
        Path(file).write_text('#!/bin/sh\necho "' + ",".join(f"'sm_{arch}'" for arch in archs.split()) + '"\n')
        Path(file).chmod(0o755)
    found = hardware.interpret([], hardware._ask(hardware._ASK_TORCH, ["{}", "[]"], isolated=False), Hardware())
    assert [one.name for one in found.hardware.gpus] == ["B300"]
    warnings = advise(found.hardware, found.stack, Goal()).warnings
    assert any("Triton's ptxas does not know B300 (sm_103)" in one for one in warnings) is warned


def test_a_crash_of_torch_is_a_finding_and_not_an_end() -> None:
    answers = hardware._ask(
        "say(torch='2.7.1')\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", [], isolated=True
    )
    assert answers[0] == {"torch": "2.7.1"} and "status -11" in answers[1]["error"]


def test_model_sizes() -> None:
    sizes = {"7b": 7, "7B": 7, "1.5b": 1.5, "350m": 0.35, "70": 70}
    assert {text: doctor.model_size(text) for text in sizes} == sizes
    for text in ("", "b", "seven", "0b", "-7b", "7bb"):
        with pytest.raises(argparse.ArgumentTypeError):
            doctor.model_size(text)


def run(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(ROOT / "validate"), "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_on_a_machine_with_nothing_it_says_so_and_ends_well(framework: str) -> None:
    done = run("--json", "--for", str(framework), "--model-size", "1b")
    assert done.returncode == 0 and not done.stderr
    data = json.loads(done.stdout)
    assert (data["goal"]["billions"], data["goal"]["framework"]) == (1.0, str(framework))
    assert {setting["name"] for setting in data["settings"]} >= {"device", "dtype", "attention", "allocator"}
    assert data["snippet"]["text"]


def test_wrong_arguments_end_with_two() -> None:
    done = run("--model-size", "huge")
    assert done.returncode == 2 and "write 7b" in done.stderr and "Traceback" not in done.stderr


def test_the_doctor_recommends_the_allocator_setting_that_images_have() -> None:
    assert SOURCES.matrix.environment["PYTORCH_ALLOC_CONF"] == ALLOCATOR
