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
from validate.doctor.advice import FRAMEWORKS, STRATEGIES, Goal, Hardware, Stack, advise
from validate.doctor.snippets import snippet

GOALS = [
    Goal(billions=billions, framework=framework, strategy=strategy)
    for framework, strategy, billions in product(FRAMEWORKS, (None, *STRATEGIES), (1.0, 70.0))
]


def written(text: str) -> tuple[dict[str, str], list[str]]:
    """The files that a snippet writes, and its other commands."""
    files = dict(re.findall(r"^cat > (\S+) <<'END'\n(.*?)^END$", text, re.DOTALL | re.MULTILINE))
    rest = re.sub(r"^cat > .*?^END\n", "", text, flags=re.DOTALL | re.MULTILINE)
    return files, rest.splitlines()


def of(machine_: Hardware, with_: Stack | None = None, **goal: object) -> str:
    known = with_ or stack()
    return snippet(advise(machine_, known, Goal(**goal)), known)[1]  # type: ignore[arg-type]


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
        if whose == "axolotl":
            data = configuration(files["train.yaml"])
            assert data["micro_batch_size"] == advice["batch_size"] and data["load_in_4bit"] is advice["load_in_4bit"]
            assert data["bf16"] is (advice["dtype"] == "bfloat16") and data["optimizer"] == advice["optimizer"]
            assert (
                len({"flash_attention", "attn_implementation", "xformers_attention", "sdp_attention"} & set(data)) == 1
            )
            assert ("fsdp_config" in data) == (advice.strategy == "fsdp")
            assert ("deepspeed" in data) == (advice.strategy == "deepspeed")
        else:
            assert not unbound(files["train.py"])
            assert f"batch_size={advice['batch_size']}," in files["train.py"]
        if "zero3.json" in files:
            assert json.loads(files["zero3.json"])["zero_optimization"]["stage"] == 3
        assert ("zero3.json" in files) == (advice.strategy == "deepspeed")
        assert commands[-1].split()[0] in ("python3", "torchrun", "accelerate", "axolotl")
        assert (whose == "unsloth") == (goal.framework == "unsloth" and bool(advice.gpus))


ONE, TWO, SMALL = machine(gpu()), machine(gpu(), gpu()), gpu(gigabytes=24)
LARGEST = machine(gpu(), gpu(), gpu(gigabytes=90))
OLD = machine(gpu((6, 1), 24), gpu((8, 0), 40), gpu((8, 0), 40))
ZERO3, FSDP = {"strategy": "deepspeed"}, {"strategy": "fsdp"}
TORCHRUN, PLACED = "torchrun --nproc-per-node 2 train.py", 'device_map={"": int(os.environ["LOCAL_RANK"])}'
ACCELERATE = "accelerate launch --num_processes 2 --mixed_precision bf16 --use_fsdp --fsdp_version 2"
INPUTS = "enable_input_require_grads()"
# axolotl 0.13.2 ends at the start with its telemetry: hint axolotl-telemetry
AXOLOTL = "export AXOLOTL_DO_NOT_TRACK=1\naxolotl train train.yaml\n"


@pytest.mark.parametrize(
    ("there", "known", "goal", "has", "lacks"),
    [
        (TWO, {}, {"strategy": "single"}, ["\npython3 train.py\n", 'device_map={"": 0}'], ["zero3.json"]),
        (TWO, {}, {"strategy": "ddp"}, [TORCHRUN, PLACED], ["zero3.json", "CUDA_VISIBLE"]),
        (TWO, {}, ZERO3, [TORCHRUN, 'deepspeed="zero3.json"'], ["device_map"]),
        (TWO, {}, FSDP, [ACCELERATE], ["device_map", "zero3.json"]),
        # reentrant checkpointing gets inputs that ask for gradients
        (machine(SMALL, SMALL), {}, ZERO3, ['{"use_reentrant": True}', INPUTS], []),
        (machine(SMALL), {}, {}, [], [INPUTS]),
        (OLD, {}, {}, ["export CUDA_VISIBLE_DEVICES=1,2\n"], []),
        (LARGEST, {}, {"strategy": "single"}, ["export CUDA_VISIBLE_DEVICES=2\n"], []),
        (ONE, {"examples": ""}, {}, ["ORGANISATION/MODEL", '"data.jsonl"'], ["tiny.py"]),
        (ONE, {}, {}, ["    dtype="], ["torch_dtype="]),
        (ONE, {"packages": {"transformers": "4.51.3"}}, {}, ["    torch_dtype="], []),
        (ONE, {}, {"framework": "axolotl"}, [AXOLOTL], []),
    ],
)
def test_a_snippet_has_what_machine_image_and_goal_ask_for(
    there: Hardware, known: Any, goal: Any, has: list[str], lacks: list[str]
) -> None:
    text = of(there, stack(**known), **goal)
    assert [words for words in has if words not in text] == [words for words in lacks if words in text] == []


def test_zero3_knows_its_configuration_before_the_model_is_loaded() -> None:
    text = of(TWO, strategy="deepspeed")
    assert text.index("TrainingArguments(\n") < text.index(".from_pretrained(\n")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_model_and_data_are_the_images_or_the_users_own_and_a_shell_takes_it(framework: str) -> None:
    for there in (ONE, TWO):
        text = of(there, framework=framework)
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)
        assert "tiny-llama" in text and f"{EXAMPLES}/data/questions.jsonl" in text
        assert shlex.split(written(text)[1][0], comments=True) == ["python3", f"{EXAMPLES}/tiny.py", "tiny-llama"]
    text = of(ONE, framework=framework, model="a/b", data="mine.jsonl")
    assert "a/b" in text and "mine.jsonl" in text and "tiny" not in text
