"""Advice as lines to paste: axolotl's YAML, Python for transformers and unsloth. Pure."""

from __future__ import annotations

import re

from validate.doctor.advice import Advice, Framework, Stack

_MODEL = "ORGANISATION/MODEL"
_LORA = {"r": 16, "alpha": 32}
_RATE = 2e-4
"""QLoRA's own learning rate for models up to 13b (Dettmers et al. 2023, table 9)."""
_PREPARED = 'gradient_checkpointing_kwargs={"use_reentrant": False}'
_DTYPE_ARGUMENT_FROM = (4, 56)
"""The transformers release that renamed torch_dtype to dtype."""
_AXOLOTL_ATTENTION = {
    "flash_attention_2": "flash_attention",
    "xformers": "xformers_attention",
    "sdpa": "sdp_attention",
}


def snippet(advice: Advice, stack: Stack) -> tuple[Framework, str]:
    """The text, and whose it is: unsloth needs a GPU, so without one it is transformers'."""
    framework = advice.goal.framework
    if framework is Framework.AXOLOTL:
        return framework, _axolotl(advice)
    if framework is Framework.UNSLOTH and advice.gpus:
        return framework, _unsloth(advice)
    return Framework.TRANSFORMERS, _transformers(advice, stack)


def _axolotl(advice: Advice) -> str:
    quantized = advice["load_in_4bit"]
    lines = [
        *_exports(advice, comment=True),
        f"base_model: {_MODEL}",
        f"adapter: {'qlora' if quantized else 'lora'}",
        f"load_in_4bit: {_yaml(quantized)}",
        f"lora_r: {_LORA['r']}",
        f"lora_alpha: {_LORA['alpha']}",
        "lora_target_linear: true",
        f"bf16: {_yaml(advice['dtype'] == 'bfloat16')}",
        f"fp16: {_yaml(advice['dtype'] == 'float16')}",
        f"tf32: {_yaml(advice['tf32'])}",
        f"{_AXOLOTL_ATTENTION[str(advice['attention'])]}: true",
        f"gradient_checkpointing: {_yaml(advice['gradient_checkpointing'])}",
    ]
    if advice["gradient_checkpointing"]:
        lines += ["gradient_checkpointing_kwargs:", "  use_reentrant: false"]
    lines += [
        "sequence_len: 2048",
        f"micro_batch_size: {advice['batch_size']}",
        f"gradient_accumulation_steps: {advice['gradient_accumulation']}",
        f"optimizer: {advice['optimizer']}",
        f"learning_rate: {_RATE}",
    ]
    return "\n".join(lines) + "\n"


def _transformers(advice: Advice, stack: Stack) -> str:
    release = re.match(r"(\d+)\.(\d+)", stack.packages.get("transformers", ""))
    old = release is not None and (int(release[1]), int(release[2])) < _DTYPE_ARGUMENT_FROM
    dtype = f"torch.{advice['dtype']}"
    quantized = bool(advice["load_in_4bit"])
    load = [
        "    model_name,",
        f"    {'torch_dtype' if old else 'dtype'}={dtype},",
        f'    attn_implementation="{advice["attention"]}",',
        f'    device_map={{"": {_device(advice)}}},',
    ]
    quantization = [
        "quantization = BitsAndBytesConfig(",
        "    load_in_4bit=True,",
        '    bnb_4bit_quant_type="nf4",',
        "    bnb_4bit_use_double_quant=True,",
        f"    bnb_4bit_compute_dtype={dtype},",
        ")",
    ]
    classes = ["AutoModelForCausalLM", *(["BitsAndBytesConfig"] if quantized else []), "TrainingArguments"]
    lines = [
        *_exports(advice, comment=False),
        *(["import os"] if "os.environ" in _device(advice) and not advice["allocator"] else []),
        "import torch",
        "from peft import LoraConfig, get_peft_model" + (", prepare_model_for_kbit_training" if quantized else ""),
        f"from transformers import {', '.join(classes)}",
        "",
        f'model_name = "{_MODEL}"',
        *(quantization if quantized else []),
        "model = AutoModelForCausalLM.from_pretrained(",
        *load,
        *(["    quantization_config=quantization,"] if quantized else []),
        ")",
        *([f"model = prepare_model_for_kbit_training(model, {_PREPARED})"] if quantized else []),
        f'lora = LoraConfig(r={_LORA["r"]}, lora_alpha={_LORA["alpha"]}, target_modules="all-linear", '
        'task_type="CAUSAL_LM")',
        "model = get_peft_model(model, lora)",
        "arguments = TrainingArguments(",
        '    output_dir="out",',
        *_arguments(advice),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _device(advice: Advice) -> str:
    """Each process of several takes the GPU that its launcher gave it."""
    if not advice.gpus:
        return '"cpu"'
    return 'int(os.environ.get("LOCAL_RANK", "0"))' if len(advice.gpus) > 1 else "0"


def _arguments(advice: Advice) -> list[str]:
    """TrainingArguments that both Python snippets have."""
    recompute = bool(advice["gradient_checkpointing"])
    return [
        f"    per_device_train_batch_size={advice['batch_size']},",
        f"    gradient_accumulation_steps={advice['gradient_accumulation']},",
        *([] if advice.gpus else ["    use_cpu=True,"]),
        f"    bf16={advice['dtype'] == 'bfloat16'},",
        f"    fp16={advice['dtype'] == 'float16'},",
        *([f"    tf32={advice['tf32']},"] if advice["tf32"] else []),
        f'    optim="{advice["optimizer"]}",',
        f"    gradient_checkpointing={recompute},",
        *(['    gradient_checkpointing_kwargs={"use_reentrant": False},'] if recompute else []),
        f"    learning_rate={_RATE},",
    ]


def _unsloth(advice: Advice) -> str:
    """unsloth takes the best attention it finds by itself, and does its own checkpointing."""
    checkpointing = '"unsloth"' if advice["gradient_checkpointing"] else "False"
    arguments = [line for line in _arguments(advice) if "checkpointing" not in line]
    lines = [
        *_exports(advice, comment=False),
        "from unsloth import FastLanguageModel  # first: it patches what is imported after it",
        "import torch",
        "from transformers import TrainingArguments",
        "",
        "model, tokenizer = FastLanguageModel.from_pretrained(",
        f'    "{_MODEL}",',
        "    max_seq_length=2048,",
        f"    dtype=torch.{advice['dtype']},",
        f"    load_in_4bit={advice['load_in_4bit']},",
        ")",
        "model = FastLanguageModel.get_peft_model(",
        "    model,",
        f"    r={_LORA['r']},",
        f"    lora_alpha={_LORA['alpha']},",
        f"    use_gradient_checkpointing={checkpointing},",
        ")",
        "arguments = TrainingArguments(",
        '    output_dir="out",',
        *arguments,
        ")",
    ]
    return "\n".join(lines) + "\n"


def _exports(advice: Advice, *, comment: bool) -> list[str]:
    """The allocator's variable, which must be there before torch starts."""
    name, _, value = str(advice["allocator"]).partition("=")
    if not name:
        return []
    if comment:
        return [f"# export {name}={value}"]
    return ["import os", "", f'os.environ.setdefault("{name}", "{value}")']


def _yaml(value: object) -> str:
    return "true" if value else "false"
