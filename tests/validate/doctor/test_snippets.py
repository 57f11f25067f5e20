"""Snippets: whole, parsed as a shell, Python and YAML parse them, and with the settings that were advised."""

import ast
import json
import re
import shlex
import subprocess
from collections.abc import Mapping
from functools import cache
from itertools import product
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from tests.support.machines import EXAMPLES, gpu, machine, machines, stack
from validate.doctor.advice import Framework, Goal, Hardware, Stack, Strategy, advise
from validate.doctor.snippets import snippet

GOALS = [
    Goal(billions=billions, framework=framework, strategy=strategy)
    for framework, strategy, billions in product(Framework, (None, *Strategy), (1.0, 70.0))
]


def written(text: str) -> tuple[dict[str, str], list[str]]:
    """The files that a snippet writes, and its other commands."""
    files = dict(re.findall(r"^cat > (\S+) <<'END'\n(.*?)^END$", text, re.DOTALL | re.MULTILINE))
    rest = re.sub(r"^cat > .*?^END\n", "", text, flags=re.DOTALL | re.MULTILINE)
    return files, rest.splitlines()


def of(machine_: Hardware, with_: Stack | None = None, **goal: object) -> tuple[Mapping[str, str], list[str]]:
    known = with_ or stack()
    return written(snippet(advise(machine_, known, Goal(**goal)), known)[1])  # type: ignore[arg-type]


@cache
def unbound(source: str) -> frozenset[str]:
    """Names that a program uses and nothing binds. Many machines get the same program."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    defined |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return frozenset(node.id for node in names) - imported - defined - stored - {"int", "print", "enumerate"}


@cache
def configuration(text: str) -> Mapping[str, Any]:
    return MappingProxyType(yaml.safe_load(text))


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.framework}-{goal.strategy}-{goal.billions:g}b")
def test_every_snippet_parses_and_says_what_was_advised(goal: Goal) -> None:
    for one in machines():
        advice = advise(one, stack(), goal)
        whose, text = snippet(advice, stack())
        files, commands = written(text)
        if whose is Framework.AXOLOTL:
            data = configuration(files["train.yaml"])
            assert data["micro_batch_size"] == advice["batch_size"] and data["load_in_4bit"] is advice["load_in_4bit"]
            assert data["bf16"] is (advice["dtype"] == "bfloat16") and data["optimizer"] == advice["optimizer"]
            assert (
                sum(
                    key in data
                    for key in ("flash_attention", "attn_implementation", "xformers_attention", "sdp_attention")
                )
                == 1
            )
            assert ("fsdp_config" in data, "deepspeed" in data) == (
                advice.strategy is Strategy.FSDP,
                advice.strategy is Strategy.DEEPSPEED,
            )
        else:
            assert not unbound(files["train.py"])
            assert f"batch_size={advice['batch_size']}," in files["train.py"]
        if "zero3.json" in files:
            assert json.loads(files["zero3.json"])["zero_optimization"]["stage"] == 3
        assert ("zero3.json" in files) == (advice.strategy is Strategy.DEEPSPEED)
        assert commands[-1].split()[0] in ("python3", "torchrun", "accelerate", "axolotl")
        assert (whose is Framework.UNSLOTH) == (goal.framework is Framework.UNSLOTH and bool(advice.gpus))


@pytest.mark.parametrize("framework", list(Framework))
def test_a_shell_takes_it(framework: Framework) -> None:
    _, text = snippet(advise(machine(gpu(), gpu()), stack(), Goal(framework=framework)), stack())
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("strategy", "command", "placed"),
    [
        (Strategy.SINGLE, "python3 train.py", 'device_map={"": 0}'),
        (Strategy.DDP, "torchrun --nproc-per-node 2 train.py", 'device_map={"": int(os.environ["LOCAL_RANK"])}'),
        (Strategy.DEEPSPEED, "torchrun --nproc-per-node 2 train.py", ""),
        (Strategy.FSDP, "accelerate launch --num_processes 2 --mixed_precision bf16 --use_fsdp --fsdp_version 2", ""),
    ],
)
def test_each_way_to_share_the_work_has_its_command(strategy: Strategy, command: str, placed: str) -> None:
    files, commands = of(machine(gpu(), gpu()), strategy=strategy)
    assert commands[-1].startswith(command)
    assert placed in files["train.py"] and ("device_map" in files["train.py"]) == bool(placed)
    assert ('deepspeed="zero3.json"' in files["train.py"]) == (strategy is Strategy.DEEPSPEED)


def test_zero3_knows_its_configuration_before_the_model_is_loaded() -> None:
    files, _ = of(machine(gpu(), gpu()), strategy=Strategy.DEEPSPEED)
    assert files["train.py"].index("TrainingArguments(\n") < files["train.py"].index(".from_pretrained(\n")


def test_reentrant_checkpointing_gets_inputs_that_ask_for_gradients() -> None:
    files, _ = of(machine(*[gpu(gigabytes=24)] * 2), strategy=Strategy.DEEPSPEED, billions=7)
    assert '{"use_reentrant": True}' in files["train.py"] and "enable_input_require_grads()" in files["train.py"]
    assert "enable_input_require_grads()" not in of(machine(gpu(gigabytes=24)))[0]["train.py"]


def test_gpus_that_are_left_out_are_hidden_from_the_run() -> None:
    some = machine(gpu((6, 1), 24), gpu((8, 0), 40), gpu((8, 0), 40))
    assert "export CUDA_VISIBLE_DEVICES=1,2" in of(some)[1]
    assert "export CUDA_VISIBLE_DEVICES=2" in of(machine(gpu(), gpu(), gpu(gigabytes=90)), strategy=Strategy.SINGLE)[1]
    assert not any("CUDA_VISIBLE" in line for line in of(machine(gpu(), gpu()))[1])


@pytest.mark.parametrize("framework", list(Framework))
def test_model_and_data_are_the_images_or_the_users_own(framework: Framework) -> None:
    files, commands = of(machine(gpu()), framework=framework)
    (text,) = (content for name, content in files.items() if name.startswith("train"))
    assert "tiny-llama" in text and f"{EXAMPLES}/data/questions.jsonl" in text
    assert shlex.split(commands[0], comments=True) == ["python3", f"{EXAMPLES}/tiny.py", "tiny-llama"]
    files, commands = of(machine(gpu()), framework=framework, model="a/b", data="mine.jsonl")
    (text,) = (content for name, content in files.items() if name.startswith("train"))
    assert "a/b" in text and "mine.jsonl" in text and not any("tiny" in line for line in [text, *commands])


def test_an_image_without_examples_gets_names_to_replace() -> None:
    files, commands = of(machine(gpu()), stack(examples=""))
    assert "ORGANISATION/MODEL" in files["train.py"] and '"data.jsonl"' in files["train.py"]
    assert not any("tiny.py" in command for command in commands)


def test_the_dtype_argument_follows_transformers() -> None:
    assert "    dtype=" in of(machine(gpu()))[0]["train.py"]
    assert "torch_dtype=" in of(machine(gpu()), stack(packages={"transformers": "4.51.3"}))[0]["train.py"]


def test_axolotl_starts_without_its_telemetry() -> None:
    """axolotl 0.13.2 ends at the start otherwise: hint axolotl-telemetry."""
    _, commands = of(machine(gpu()), framework=Framework.AXOLOTL)
    assert commands[-2:] == ["export AXOLOTL_DO_NOT_TRACK=1", "axolotl train train.yaml"]
