"""Advice as commands to paste into a shell: they write a program or a configuration, and train with it. Pure.

Pasted as they are, they train a tiny model of the image on data of the image; `--model` and `--data` name others.

A template is what is written, with `$name` for a value. A line that begins with `[name]` is there where that holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from string import Template

from validate.doctor.advice import Advice, Framework, Stack, Strategy

_RATE = 2e-4
"""QLoRA's own learning rate for models up to 13b (Dettmers et al. 2023, table 9)."""
_TINY, _ANY_MODEL, _ANY_DATA = "tiny-llama", "ORGANISATION/MODEL", "data.jsonl"
_DTYPE_ARGUMENT_FROM = (4, 56)
"""The transformers release that renamed torch_dtype to dtype."""
_CONDITION = re.compile(r"\[(\w+)\]")

_ROWS = """\
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token


def tokens(row):
    text = f"{row['instruction']} {row['input']}\\n{row['output']}{tokenizer.eos_token}"
    return tokenizer(text, truncation=True, max_length=2048)


rows = load_dataset("json", data_files="$data", split="train")
rows = rows.map(tokens, remove_columns=rows.column_names)

"""
_ARGUMENTS = """\
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=$batch_size,
    gradient_accumulation_steps=$gradient_accumulation,
[cpu]    use_cpu=True,
    bf16=$bf16,
    fp16=$fp16,
[tf32]    tf32=True,
    optim="$optimizer",
    learning_rate=$rate,
    num_train_epochs=1,
    logging_steps=10,
    save_strategy="no",
    report_to="none",
[checkpointed]    gradient_checkpointing=True,
[checkpointed]    gradient_checkpointing_kwargs={"use_reentrant": $use_reentrant},
[zero3]    deepspeed="zero3.json",
)
"""
_TRAINING = """\
collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator)
trainer.train()
trainer.save_model("out/adapter")
tokenizer.save_pretrained("out/adapter")
"""
# DeepSpeed's arguments are read when a model is loaded: each process loads its part. Frameworks that shard weights
# place them. The reentrant kind of checkpointing passes no gradients on to adapters whose inputs don't ask for them.
# FSDP2 shards tensors of one type together.
_TRANSFORMERS = f"""\
[ddp]import os
[ddp]
import torch
from datasets import load_dataset
[plain]from peft import LoraConfig, get_peft_model
[quantized]from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
[quantized]    BitsAndBytesConfig,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

model_name = "$model"
{_ARGUMENTS}\
tokenizer = AutoTokenizer.from_pretrained(model_name)
{_ROWS}\
[quantized]quantization = BitsAndBytesConfig(
[quantized]    load_in_4bit=True,
[quantized]    bnb_4bit_quant_type="nf4",
[quantized]    bnb_4bit_use_double_quant=True,
[quantized]    bnb_4bit_compute_dtype=torch.$dtype,
[quantized])
model = AutoModelForCausalLM.from_pretrained(
    model_name,
    $dtype_argument=torch.$dtype,
    attn_implementation="$attention",
[placed]    device_map=$place,
[quantized]    quantization_config=quantization,
)
[quantized]model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=$gradient_checkpointing, \
gradient_checkpointing_kwargs={{"use_reentrant": $use_reentrant}})
[inputs]model.enable_input_require_grads()
lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
[whole]model = get_peft_model(model, lora)
[sharded]model = get_peft_model(model, lora, autocast_adapter_dtype=False)

{_TRAINING}"""
_UNSLOTH = f"""\
from unsloth import FastLanguageModel  # first: it patches what is imported after it
import torch
from datasets import load_dataset
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

model, tokenizer = FastLanguageModel.from_pretrained(
    "$model",
    max_seq_length=2048,
    dtype=torch.$dtype,
    load_in_4bit=$load_in_4bit,
)
model = FastLanguageModel.get_peft_model(
    model,
    r=16,
    lora_alpha=32,
[recomputed]    use_gradient_checkpointing="unsloth",
[kept]    use_gradient_checkpointing=False,
)
{_ROWS}{_ARGUMENTS}{_TRAINING}"""
_COLOSSALAI = f"""\
import colossalai
import torch
from colossalai.booster import Booster
from colossalai.booster.plugin import $plugin
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling

colossalai.launch_from_torch(backend="$backend")
model_name = "$model"
tokenizer = AutoTokenizer.from_pretrained(model_name)
{_ROWS}\
model = AutoModelForCausalLM.from_pretrained(
    model_name,
    $dtype_argument=torch.$dtype,
    attn_implementation="$attention",
)
[recomputed]model.gradient_checkpointing_enable({{"use_reentrant": $use_reentrant}})
[recomputed]model.enable_input_require_grads()
[cpu]plugin = TorchDDPPlugin()
[gpu]plugin = LowLevelZeroPlugin(stage=1, precision="$precision")
booster = Booster(plugin=plugin)
lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
model = booster.enable_lora(model.to("$device"), lora_config=lora)
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=$rate)
loader = plugin.prepare_dataloader(
    rows, batch_size=$batch_size, shuffle=True, drop_last=True,
    collate_fn=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
model, optimizer, _, loader, _ = booster.boost(model, optimizer, dataloader=loader)
accumulation = $gradient_accumulation
for step, batch in enumerate(loader, 1):
    loss = model(**{{name: value.to("$device") for name, value in batch.items()}}).loss
    booster.backward(loss / accumulation, optimizer)
    if step % accumulation == 0:
        optimizer.step()
        optimizer.zero_grad()
    if step % (10 * accumulation) == 0:
        print(f"step {{step // accumulation}}: loss {{loss.item():.3f}}", flush=True)
booster.save_lora_as_pretrained(model, "out/adapter")
torch.distributed.destroy_process_group()
"""
# With FSDP checkpointing is a part of fsdp_config.
_AXOLOTL = """\
base_model: $model
datasets:
  - path: $data
    ds_type: json
    type: alpaca
output_dir: out
[quantized]adapter: qlora
[plain]adapter: lora
load_in_4bit: $yaml_quantized
lora_r: 16
lora_alpha: 32
lora_target_linear: true
bf16: $yaml_bf16
fp16: $yaml_fp16
tf32: $yaml_tf32
$axolotl_attention
[by_fsdp]gradient_checkpointing: false
[checkpointed]gradient_checkpointing: true
[checkpointed]gradient_checkpointing_kwargs:
[checkpointed]  use_reentrant: $yaml_reentrant
[zero3]deepspeed: zero3.json
[fsdp]fsdp_version: 2
[fsdp]fsdp_config:
[fsdp]  auto_wrap_policy: TRANSFORMER_BASED_WRAP
[fsdp]  cpu_ram_efficient_loading: true
[fsdp]  reshard_after_forward: true
[fsdp]  state_dict_type: FULL_STATE_DICT
[fsdp]  activation_checkpointing: $yaml_recomputed
sequence_len: 2048
micro_batch_size: $batch_size
gradient_accumulation_steps: $gradient_accumulation
num_epochs: 1
optimizer: $optimizer
learning_rate: $rate
lr_scheduler: cosine
"""
_FILES: Mapping[Framework, tuple[str, str]] = {
    Framework.TRANSFORMERS: ("train.py", _TRANSFORMERS),
    Framework.AXOLOTL: ("train.yaml", _AXOLOTL),
    Framework.UNSLOTH: ("train.py", _UNSLOTH),
    Framework.COLOSSALAI: ("train.py", _COLOSSALAI),
}
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
# axolotl 0.13.2 as published lacks a file that its telemetry reads at the start (telemetry/whitelist.yaml).
_COMMANDS = """\
[tiny]python3 $examples/tiny.py tiny-llama  # to try it; for yours: doctor --model ORGANISATION/MODEL
[some]export CUDA_VISIBLE_DEVICES=$visible
[allocated]export $allocator
[axolotl]export AXOLOTL_DO_NOT_TRACK=1
[axolotl]axolotl train train.yaml
[colossalai]torchrun --standalone --nproc-per-node $ranks train.py
[one]python3 train.py
[several]torchrun --nproc-per-node $ranks train.py
[accelerated]accelerate launch --num_processes $ranks --mixed_precision $precision --use_fsdp \
--fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_cpu_ram_efficient_loading true \
--fsdp_state_dict_type FULL_STATE_DICT --fsdp_activation_checkpointing $yaml_recomputed train.py
"""
_OF_AXOLOTL = {
    "flash_attention_2": "flash_attention: true",
    "flash_attention_4": "attn_implementation: flash_attention_4",  # flash_attention: true asks for flash-attn 2
    "xformers": "xformers_attention: true",
    "sdpa": "sdp_attention: true",
}
_PLACES = {Strategy.SINGLE: '{"": 0}', Strategy.DDP: '{"": int(os.environ["LOCAL_RANK"])}'}


def snippet(advice: Advice, stack: Stack) -> tuple[Framework, str]:
    """The text, and whose it is: unsloth needs a GPU, so without one it is transformers'."""
    framework = advice.goal.framework
    if framework is Framework.UNSLOTH and not advice.gpus:
        framework = Framework.TRANSFORMERS
    conditions, values = _conditions(advice, stack, framework), _values(advice, stack)
    name, template = _FILES[framework]
    files = {name: _filled(template, conditions, values)}
    if advice.strategy is Strategy.DEEPSPEED and framework in (Framework.TRANSFORMERS, Framework.AXOLOTL):
        files["zero3.json"] = json.dumps(_ZERO3, indent=1) + "\n"
    written = "".join(f"cat > {name} <<'END'\n{content}END\n" for name, content in files.items())
    return framework, written + _filled(_COMMANDS, conditions, values)


def _filled(template: str, conditions: Mapping[str, bool], values: Mapping[str, object]) -> str:
    lines = []
    for line in template.splitlines(keepends=True):
        condition = _CONDITION.match(line)
        if condition is None or conditions[condition[1]]:
            lines.append(line[condition.end() :] if condition else line)
    return Template("".join(lines)).substitute(values)


def _conditions(advice: Advice, stack: Stack, framework: Framework) -> Mapping[str, bool]:
    """What a line may depend on."""
    quantized, recomputed = bool(advice["load_in_4bit"]), bool(advice["gradient_checkpointing"])
    strategy, gpu = advice.strategy, bool(advice.gpus)
    own_start = framework in (Framework.AXOLOTL, Framework.COLOSSALAI)
    # unsloth does its own checkpointing; with FSDP it is accelerate's, which the command switches on.
    checkpointed = recomputed and strategy is not Strategy.FSDP and framework is not Framework.UNSLOTH
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
        "sharded": strategy.shards,
        "whole": not strategy.shards,
        "ddp": strategy is Strategy.DDP,
        "fsdp": strategy is Strategy.FSDP,
        "zero3": strategy is Strategy.DEEPSPEED and framework is not Framework.UNSLOTH,
        "tiny": bool(stack.examples) and (advice.goal.model or _TINY) == _TINY,
        "some": bool(advice.visible),
        "allocated": bool(advice["allocator"]),
        "axolotl": framework is Framework.AXOLOTL,
        "colossalai": framework is Framework.COLOSSALAI,
        "one": not own_start and strategy is Strategy.SINGLE,
        "several": not own_start and strategy in (Strategy.DDP, Strategy.DEEPSPEED),
        "accelerated": not own_start and strategy is Strategy.FSDP,
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
