"""Advice as commands to paste into a shell: they write a program or a configuration, and train with it. Pure.

Pasted as they are, they train a tiny model of the image on data of the image; `--model` and `--data` name others.

A template is what is written, with `$name` for a value. A line that begins with `[name]` is there where that holds,
`@name` is another template.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Template

from validate.doctor.advice import SHARDING, Advice, Stack

_RATE = 2e-4
"""QLoRA's own learning rate for models up to 13b (Dettmers et al. 2023, table 9)."""
_TINY, _ANY_MODEL, _ANY_DATA = "tiny-llama", "ORGANISATION/MODEL", "data.jsonl"
_DTYPE_ARGUMENT_FROM = (4, 56)
"""The transformers release that renamed torch_dtype to dtype."""
_CONDITION = re.compile(r"\[(\w+)\]")

_TEMPLATES = Path(__file__).resolve().with_name("templates")
_FILES = {
    "transformers": "train.py",
    "axolotl": "train.yaml",
    "unsloth": "train.py",
    "colossalai": "train.py",
}
"""What is written of each framework's template. In these, DeepSpeed's arguments come first: they are read when a model
is loaded, as each process loads its part. Frameworks that shard weights place them. The reentrant kind of checkpointing
passes no gradients on to adapters whose inputs don't ask for them. FSDP2 shards tensors of one type together, and its
checkpointing is a part of fsdp_config. axolotl 0.13.2 as published lacks a file that its telemetry reads at the start
(telemetry/whitelist.yaml)."""
_OF_AXOLOTL = {
    "flash_attention_2": "flash_attention: true",
    "flash_attention_4": "attn_implementation: flash_attention_4",  # flash_attention: true asks for flash-attn 2
    "xformers": "xformers_attention: true",
    "sdpa": "sdp_attention: true",
}
_PLACES = {"single": '{"": 0}', "ddp": '{"": int(os.environ["LOCAL_RANK"])}'}


def snippet(advice: Advice, stack: Stack) -> tuple[str, str]:
    """The text, and whose it is: unsloth needs a GPU, so without one it is transformers'."""
    framework = advice.goal.framework
    if framework == "unsloth" and not advice.gpus:
        framework = "transformers"
    conditions, values = _conditions(advice, stack, framework), _values(advice, stack)
    files = {_FILES[framework]: _filled(framework, conditions, values)}
    if advice.strategy == "deepspeed" and framework in ("transformers", "axolotl"):
        files["zero3.json"] = (_TEMPLATES / "zero3.json").read_text(encoding="utf-8")
    written = "".join(f"cat > {name} <<'END'\n{content}END\n" for name, content in files.items())
    return framework, written + _filled("commands", conditions, values)


@cache
def _template(name: str) -> str:
    text = (_TEMPLATES / f"{name}.txt").read_text(encoding="utf-8")
    return re.sub(r"(?m)^@(\w+)\n", lambda found: _template(found[1]), text)


def _filled(name: str, conditions: Mapping[str, bool], values: Mapping[str, object]) -> str:
    lines = []
    for line in _template(name).splitlines(keepends=True):
        condition = _CONDITION.match(line)
        if condition is None or conditions[condition[1]]:
            lines.append(line[condition.end() :] if condition else line)
    return Template("".join(lines)).substitute(values)


def _conditions(advice: Advice, stack: Stack, framework: str) -> Mapping[str, bool]:
    """What a line may depend on."""
    quantized, recomputed = bool(advice["load_in_4bit"]), bool(advice["gradient_checkpointing"])
    strategy, gpu = advice.strategy, bool(advice.gpus)
    own_start = framework in ("axolotl", "colossalai")
    # unsloth does its own checkpointing; with FSDP it is accelerate's, which the command switches on.
    checkpointed = recomputed and strategy != "fsdp" and framework != "unsloth"
    return {
        "quantized": quantized,
        "plain": not quantized,
        "recomputed": recomputed,
        "kept": not recomputed,
        "checkpointed": checkpointed,
        "by_fsdp": not checkpointed,
        "inputs": recomputed and bool(advice["use_reentrant"]) and not quantized,
        "cpu": not gpu,
        "gpu": gpu,
        "placed": not gpu or strategy in _PLACES,
        "tf32": bool(advice["tf32"]),
        "sharded": strategy in SHARDING,
        "whole": strategy not in SHARDING,
        "ddp": strategy == "ddp",
        "fsdp": strategy == "fsdp",
        "zero3": strategy == "deepspeed" and framework != "unsloth",
        "tiny": bool(stack.examples) and (advice.goal.model or _TINY) == _TINY,
        "some": bool(advice.visible),
        "allocated": bool(advice["allocator"]),
        "axolotl": framework == "axolotl",
        "colossalai": framework == "colossalai",
        "one": not own_start and strategy == "single",
        "several": not own_start and strategy in ("ddp", "deepspeed"),
        "accelerated": not own_start and strategy == "fsdp",
    }


def _values(advice: Advice, stack: Stack) -> Mapping[str, object]:
    """What takes a placeholder's place: the settings by their names, and what follows from them."""
    gpu, dtype = bool(advice.gpus), str(advice["dtype"])
    release = re.match(r"(\d+)\.(\d+)", stack.packages.get("transformers", ""))
    old = release is not None and (int(release[1]), int(release[2])) < _DTYPE_ARGUMENT_FROM
    yes = {
        "quantized": advice["load_in_4bit"],
        "bf16": dtype == "bfloat16",
        "fp16": dtype == "float16",
        "tf32": advice["tf32"],
        "reentrant": advice["use_reentrant"],
        "recomputed": advice["gradient_checkpointing"],
    }
    return {
        **{setting.name: setting.value for setting in advice.settings},
        **{f"yaml_{name}": "true" if value else "false" for name, value in yes.items()},
        "model": advice.goal.model or (_TINY if stack.examples else _ANY_MODEL),
        "data": advice.goal.data or (f"{stack.examples}/data/questions.jsonl" if stack.examples else _ANY_DATA),
        "examples": stack.examples,
        "rate": _RATE,
        "ranks": max(1, len(advice.gpus)),
        "visible": ",".join(advice.visible),
        "bf16": yes["bf16"],
        "fp16": yes["fp16"],
        "precision": {"bfloat16": "bf16", "float16": "fp16"}.get(dtype, ""),
        "dtype_argument": "torch_dtype" if old else "dtype",
        "place": _PLACES.get(advice.strategy, "") if gpu else '"cpu"',
        "axolotl_attention": _OF_AXOLOTL.get(str(advice["attention"]), ""),
        "plugin": "LowLevelZeroPlugin" if gpu else "TorchDDPPlugin",
        "backend": "nccl" if gpu else "gloo",
        "device": "cuda" if gpu else "cpu",
    }
