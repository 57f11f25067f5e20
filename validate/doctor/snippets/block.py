"""What the snippets of all frameworks share: how they are written, and their model, data and adapters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from validate.doctor.terms import Advice, Stack, Strategy

LORA_RANK, LORA_ALPHA = 16, 32
RATE = 2e-4
"""QLoRA's own learning rate for models up to 13b (Dettmers et al. 2023, table 9)."""
LENGTH = 2048
PROGRAM = "train.py"
_TINY, _ANY_MODEL, _ANY_DATA = "tiny-llama", "ORGANISATION/MODEL", "data.jsonl"
_DTYPE_ARGUMENT_FROM = (4, 56)
"""The transformers release that renamed torch_dtype to dtype."""
_END = "END"


@dataclass(frozen=True, kw_only=True)
class Block:
    """Files to write, and the commands that use them."""

    files: Mapping[str, Sequence[str]]
    """Name -> lines."""
    commands: Sequence[str]

    @property
    def text(self) -> str:
        """For a POSIX shell in a folder that one may write to."""
        lines: list[str] = []
        for name, content in self.files.items():
            lines += [f"cat > {name} <<'{_END}'", *content, _END]
        return "\n".join([*lines, *self.commands]) + "\n"


def model(advice: Advice, stack: Stack) -> str:
    """Whose weights are trained."""
    return advice.goal.model or (_TINY if stack.examples else _ANY_MODEL)


def data(advice: Advice, stack: Stack) -> str:
    """A file of JSON lines with `instruction`, `input` and `output`."""
    return advice.goal.data or (f"{stack.examples}/data/questions.jsonl" if stack.examples else _ANY_DATA)


def before(advice: Advice, stack: Stack) -> list[str]:
    """Commands before the one that trains: the tiny model, which GPUs, and the allocator of their memory."""
    lines = []
    if model(advice, stack) == _TINY and stack.examples:
        lines.append(f"python3 {stack.examples}/tiny.py {_TINY}  # to try it; for yours: doctor --model {_ANY_MODEL}")
    if advice.visible:
        lines.append(f"export CUDA_VISIBLE_DEVICES={','.join(advice.visible)}")
    if advice["allocator"]:
        lines.append(f"export {advice['allocator']}")
    return lines


def start(advice: Advice) -> str:
    """The command that trains: one process, or one a GPU."""
    if advice.strategy is Strategy.SINGLE:
        return f"python3 {PROGRAM}"
    if advice.strategy is not Strategy.FSDP:
        return f"torchrun --nproc-per-node {len(advice.gpus)} {PROGRAM}"
    precision = {"bfloat16": "bf16", "float16": "fp16"}[str(advice["dtype"])]
    checkpointing = "true" if advice["gradient_checkpointing"] else "false"
    return (
        f"accelerate launch --num_processes {len(advice.gpus)} --mixed_precision {precision} --use_fsdp "
        "--fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_cpu_ram_efficient_loading true "
        f"--fsdp_state_dict_type FULL_STATE_DICT --fsdp_activation_checkpointing {checkpointing} {PROGRAM}"
    )


def dtype_argument(stack: Stack) -> str:
    """What this transformers calls the argument for the weights' type."""
    release = re.match(r"(\d+)\.(\d+)", stack.packages.get("transformers", ""))
    old = release is not None and (int(release[1]), int(release[2])) < _DTYPE_ARGUMENT_FROM
    return "torch_dtype" if old else "dtype"


def rows(advice: Advice, stack: Stack) -> list[str]:
    """Python that reads the data as tokens: `tokenizer` is there before, `rows` after."""
    return [
        "tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token",
        "",
        "",
        "def tokens(row):",
        "    text = f\"{row['instruction']} {row['input']}\\n{row['output']}{tokenizer.eos_token}\"",
        f"    return tokenizer(text, truncation=True, max_length={LENGTH})",
        "",
        "",
        f'rows = load_dataset("json", data_files="{data(advice, stack)}", split="train")',
        "rows = rows.map(tokens, remove_columns=rows.column_names)",
    ]


def arguments(advice: Advice, *more: str) -> list[str]:
    """`arguments = TrainingArguments(...)`."""
    return [
        "arguments = TrainingArguments(",
        '    output_dir="out",',
        f"    per_device_train_batch_size={advice['batch_size']},",
        f"    gradient_accumulation_steps={advice['gradient_accumulation']},",
        *([] if advice.gpus else ["    use_cpu=True,"]),
        f"    bf16={advice['dtype'] == 'bfloat16'},",
        f"    fp16={advice['dtype'] == 'float16'},",
        *(["    tf32=True,"] if advice["tf32"] else []),
        f'    optim="{advice["optimizer"]}",',
        f"    learning_rate={RATE},",
        "    num_train_epochs=1,",
        "    logging_steps=10,",
        '    save_strategy="no",',
        '    report_to="none",',
        *more,
        ")",
    ]


def training() -> list[str]:
    """Python that trains `model` on `rows` and saves the adapter."""
    return [
        "collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)",
        "trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator)",
        "trainer.train()",
        'trainer.save_model("out/adapter")',
        'tokenizer.save_pretrained("out/adapter")',
    ]
