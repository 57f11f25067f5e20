"""ColossalAI: a program with its Booster, which torchrun starts, one process a GPU."""

from __future__ import annotations

from validate.doctor.snippets.block import (
    LORA_ALPHA,
    LORA_RANK,
    PROGRAM,
    RATE,
    Block,
    before,
    dtype_argument,
    model,
    rows,
)
from validate.doctor.terms import Advice, Stack

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


def block(advice: Advice, stack: Stack) -> Block:
    """A program that trains an adapter, and how it is started."""
    ranks = max(1, len(advice.gpus))
    command = f"torchrun --standalone --nproc-per-node {ranks} {PROGRAM}"
    return Block(files={PROGRAM: _program(advice, stack)}, commands=[*before(advice, stack), command])


def _program(advice: Advice, stack: Stack) -> list[str]:
    plugin, backend, device = "TorchDDPPlugin", "gloo", "cpu"
    made = f"{plugin}()"
    if advice.gpus:
        plugin, backend, device = "LowLevelZeroPlugin", "nccl", "cuda"
        made = f'{plugin}(stage=1, precision="{_PRECISIONS[str(advice["dtype"])]}")'
    checkpointing = f'{{"use_reentrant": {advice["use_reentrant"]}}}'
    return [
        "import colossalai",
        "import torch",
        "from colossalai.booster import Booster",
        f"from colossalai.booster.plugin import {plugin}",
        "from datasets import load_dataset",
        "from peft import LoraConfig",
        "from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling",
        "",
        f'colossalai.launch_from_torch(backend="{backend}")',
        f'model_name = "{model(advice, stack)}"',
        "tokenizer = AutoTokenizer.from_pretrained(model_name)",
        *rows(advice, stack),
        "",
        "model = AutoModelForCausalLM.from_pretrained(",
        "    model_name,",
        f"    {dtype_argument(stack)}=torch.{advice['dtype']},",
        f'    attn_implementation="{advice["attention"]}",',
        ")",
        *(
            [f"model.gradient_checkpointing_enable({checkpointing})", "model.enable_input_require_grads()"]
            if advice["gradient_checkpointing"]
            else []
        ),
        f"plugin = {made}",
        "booster = Booster(plugin=plugin)",
        f"lora = LoraConfig(r={LORA_RANK}, lora_alpha={LORA_ALPHA}, "
        'target_modules="all-linear", task_type="CAUSAL_LM")',
        f'model = booster.enable_lora(model.to("{device}"), lora_config=lora)',
        f"optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr={RATE})",
        "loader = plugin.prepare_dataloader(",
        f"    rows, batch_size={advice['batch_size']}, shuffle=True, drop_last=True,",
        "    collate_fn=DataCollatorForLanguageModeling(tokenizer, mlm=False),",
        ")",
        "model, optimizer, _, loader, _ = booster.boost(model, optimizer, dataloader=loader)",
        f"accumulation = {advice['gradient_accumulation']}",
        "for step, batch in enumerate(loader, 1):",
        f'    loss = model(**{{name: value.to("{device}") for name, value in batch.items()}}).loss',
        "    booster.backward(loss / accumulation, optimizer)",
        "    if step % accumulation == 0:",
        "        optimizer.step()",
        "        optimizer.zero_grad()",
        "    if step % (10 * accumulation) == 0:",
        '        print(f"step {step // accumulation}: loss {loss.item():.3f}", flush=True)',
        'booster.save_lora_as_pretrained(model, "out/adapter")',
        "torch.distributed.destroy_process_group()",
    ]
