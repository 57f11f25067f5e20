"""axolotl: a configuration. `axolotl train` starts accelerate, which starts a process a GPU."""

from __future__ import annotations

from validate.doctor.snippets.block import LENGTH, LORA_ALPHA, LORA_RANK, RATE, Block, before, data, model
from validate.doctor.snippets.transformers import ZERO3_FILE, zero3
from validate.doctor.terms import Advice, Stack, Strategy

_CONFIGURATION = "train.yaml"
_NO_TELEMETRY = "export AXOLOTL_DO_NOT_TRACK=1"
"""axolotl 0.13.2 as published lacks a file that its telemetry reads at the start (telemetry/whitelist.yaml)."""
_ATTENTION = {
    "flash_attention_2": "flash_attention",
    "xformers": "xformers_attention",
    "sdpa": "sdp_attention",
}


def block(advice: Advice, stack: Stack) -> Block:
    """A configuration, and how it is run."""
    files = {_CONFIGURATION: _configuration(advice, stack)}
    if advice.strategy is Strategy.DEEPSPEED:
        files[ZERO3_FILE] = zero3()
    return Block(files=files, commands=[*before(advice, stack), _NO_TELEMETRY, f"axolotl train {_CONFIGURATION}"])


def _configuration(advice: Advice, stack: Stack) -> list[str]:
    quantized = advice["load_in_4bit"]
    return [
        f"base_model: {model(advice, stack)}",
        "datasets:",
        f"  - path: {data(advice, stack)}",
        "    ds_type: json",
        "    type: alpaca",
        "output_dir: out",
        f"adapter: {'qlora' if quantized else 'lora'}",
        f"load_in_4bit: {_yaml(quantized)}",
        f"lora_r: {LORA_RANK}",
        f"lora_alpha: {LORA_ALPHA}",
        "lora_target_linear: true",
        f"bf16: {_yaml(advice['dtype'] == 'bfloat16')}",
        f"fp16: {_yaml(advice['dtype'] == 'float16')}",
        f"tf32: {_yaml(advice['tf32'])}",
        f"{_ATTENTION[str(advice['attention'])]}: true",
        *_checkpointing(advice),
        *_sharding(advice),
        f"sequence_len: {LENGTH}",
        f"micro_batch_size: {advice['batch_size']}",
        f"gradient_accumulation_steps: {advice['gradient_accumulation']}",
        "num_epochs: 1",
        f"optimizer: {advice['optimizer']}",
        f"learning_rate: {RATE}",
        "lr_scheduler: cosine",
    ]


def _checkpointing(advice: Advice) -> list[str]:
    """With FSDP it is a part of fsdp_config."""
    if not advice["gradient_checkpointing"] or advice.strategy is Strategy.FSDP:
        return ["gradient_checkpointing: false"]
    return [
        "gradient_checkpointing: true",
        "gradient_checkpointing_kwargs:",
        f"  use_reentrant: {_yaml(advice['use_reentrant'])}",
    ]


def _sharding(advice: Advice) -> list[str]:
    if advice.strategy is Strategy.DEEPSPEED:
        return [f"deepspeed: {ZERO3_FILE}"]
    if advice.strategy is not Strategy.FSDP:
        return []
    return [
        "fsdp_version: 2",
        "fsdp_config:",
        "  auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        "  cpu_ram_efficient_loading: true",
        "  reshard_after_forward: true",
        "  state_dict_type: FULL_STATE_DICT",
        f"  activation_checkpointing: {_yaml(advice['gradient_checkpointing'])}",
    ]


def _yaml(value: object) -> str:
    return "true" if value else "false"
