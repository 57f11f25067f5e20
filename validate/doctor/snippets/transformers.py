"""transformers: a program with its Trainer and peft; several GPUs by torchrun or accelerate."""

from __future__ import annotations

import json

from validate.doctor.snippets.block import (
    LORA_ALPHA,
    LORA_RANK,
    PROGRAM,
    Block,
    arguments,
    before,
    dtype_argument,
    model,
    rows,
    start,
    training,
)
from validate.doctor.terms import Advice, Stack, Strategy

_ZERO3 = {
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "stage3_gather_16bit_weights_on_model_save": True},
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}
"""DeepSpeed's configuration; `auto`: what the framework says."""
ZERO3_FILE = "zero3.json"


def zero3() -> list[str]:
    """The lines of ZERO3_FILE."""
    return json.dumps(_ZERO3, indent=1).splitlines()


def block(advice: Advice, stack: Stack) -> Block:
    """A program that trains an adapter, and how it is started."""
    files = {PROGRAM: _program(advice, stack)}
    if advice.strategy is Strategy.DEEPSPEED:
        files[ZERO3_FILE] = zero3()
    return Block(files=files, commands=[*before(advice, stack), start(advice)])


def _program(advice: Advice, stack: Stack) -> list[str]:
    quantized = bool(advice["load_in_4bit"])
    names = [
        "AutoModelForCausalLM",
        "AutoTokenizer",
        *(["BitsAndBytesConfig"] if quantized else []),
        "DataCollatorForLanguageModeling",
        "Trainer",
        "TrainingArguments",
    ]
    peft = ["LoraConfig", "get_peft_model", *(["prepare_model_for_kbit_training"] if quantized else [])]
    return [
        *(["import os", ""] if advice.strategy is Strategy.DDP else []),
        "import torch",
        "from datasets import load_dataset",
        f"from peft import {', '.join(peft)}",
        "from transformers import (",
        *(f"    {name}," for name in names),
        ")",
        "",
        f'model_name = "{model(advice, stack)}"',
        # DeepSpeed's are read when a model is loaded: each process loads its part.
        *arguments(advice, *_checkpointing(advice), *_deepspeed(advice)),
        "tokenizer = AutoTokenizer.from_pretrained(model_name)",
        *rows(advice, stack),
        "",
        *_model(advice, stack, quantized),
        f"lora = LoraConfig(r={LORA_RANK}, lora_alpha={LORA_ALPHA}, "
        'target_modules="all-linear", task_type="CAUSAL_LM")',
        # FSDP2 shards tensors of one type together.
        f"model = get_peft_model(model, lora{', autocast_adapter_dtype=False' if advice.strategy.shards else ''})",
        "",
        *training(),
    ]


def _model(advice: Advice, stack: Stack, quantized: bool) -> list[str]:
    dtype = f"torch.{advice['dtype']}"
    recompute, reentrant = advice["gradient_checkpointing"], advice["use_reentrant"]
    configuration = [
        "quantization = BitsAndBytesConfig(",
        "    load_in_4bit=True,",
        '    bnb_4bit_quant_type="nf4",',
        "    bnb_4bit_use_double_quant=True,",
        f"    bnb_4bit_compute_dtype={dtype},",
        ")",
    ]
    prepare = (
        f"model = prepare_model_for_kbit_training(model, use_gradient_checkpointing={recompute}, "
        f'gradient_checkpointing_kwargs={{"use_reentrant": {reentrant}}})'
    )
    return [
        *(configuration if quantized else []),
        "model = AutoModelForCausalLM.from_pretrained(",
        "    model_name,",
        f"    {dtype_argument(stack)}={dtype},",
        f'    attn_implementation="{advice["attention"]}",',
        *_placed(advice),
        *(["    quantization_config=quantization,"] if quantized else []),
        ")",
        *([prepare] if quantized else []),
        # Its inputs must ask for gradients, or the reentrant kind passes none on to the adapters.
        *(["model.enable_input_require_grads()"] if recompute and reentrant and not quantized else []),
    ]


def _placed(advice: Advice) -> list[str]:
    """Where the weights go. Frameworks that shard them place them."""
    places = {Strategy.SINGLE: "0", Strategy.DDP: 'int(os.environ["LOCAL_RANK"])'}
    if not advice.gpus:
        return ['    device_map="cpu",']
    return [f'    device_map={{"": {places[advice.strategy]}}},'] if advice.strategy in places else []


def _checkpointing(advice: Advice) -> list[str]:
    """With FSDP it is accelerate's, which `start` switches on."""
    if not advice["gradient_checkpointing"] or advice.strategy is Strategy.FSDP:
        return []
    return [
        "    gradient_checkpointing=True,",
        f'    gradient_checkpointing_kwargs={{"use_reentrant": {advice["use_reentrant"]}}},',
    ]


def _deepspeed(advice: Advice) -> list[str]:
    return [f'    deepspeed="{ZERO3_FILE}",'] if advice.strategy is Strategy.DEEPSPEED else []
