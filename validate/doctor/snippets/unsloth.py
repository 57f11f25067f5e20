"""unsloth: a program for one GPU. It takes the best attention it finds by itself, and does its own checkpointing."""

from __future__ import annotations

from validate.doctor.snippets.block import (
    LENGTH,
    LORA_ALPHA,
    LORA_RANK,
    PROGRAM,
    Block,
    arguments,
    before,
    model,
    rows,
    start,
    training,
)
from validate.doctor.terms import Advice, Stack


def block(advice: Advice, stack: Stack) -> Block:
    """A program that trains an adapter, and how it is started."""
    return Block(files={PROGRAM: _program(advice, stack)}, commands=[*before(advice, stack), start(advice)])


def _program(advice: Advice, stack: Stack) -> list[str]:
    checkpointing = '"unsloth"' if advice["gradient_checkpointing"] else "False"
    return [
        "from unsloth import FastLanguageModel  # first: it patches what is imported after it",
        "import torch",
        "from datasets import load_dataset",
        "from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments",
        "",
        "model, tokenizer = FastLanguageModel.from_pretrained(",
        f'    "{model(advice, stack)}",',
        f"    max_seq_length={LENGTH},",
        f"    dtype=torch.{advice['dtype']},",
        f"    load_in_4bit={advice['load_in_4bit']},",
        ")",
        "model = FastLanguageModel.get_peft_model(",
        "    model,",
        f"    r={LORA_RANK},",
        f"    lora_alpha={LORA_ALPHA},",
        f"    use_gradient_checkpointing={checkpointing},",
        ")",
        *rows(advice, stack),
        "",
        *arguments(advice),
        *training(),
    ]
