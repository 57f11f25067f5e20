"""Fine-tune a language model with transformers' Trainer, save it, and let it speak.

python3 trainer.py trainer.yaml
"""

import json
import sys
from pathlib import Path

import torch
import yaml
from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    pipeline,
)

config = yaml.safe_load(Path(sys.argv[1]).read_text())
out = Path(config["out"])

tokenizer = AutoTokenizer.from_pretrained(config["model"])
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
attention = config.get("attention", "sdpa")
model = AutoModelForCausalLM.from_pretrained(
    config["model"],
    device_map=config["device_map"],
    dtype=torch.float32,
    attn_implementation=attention,
)


def tokens(row):
    text = (
        " ".join(part for part in (row["instruction"], row["input"]) if part) + "\n" + row["output"]
    )
    return tokenizer(
        text + tokenizer.eos_token,
        truncation=True,
        padding="max_length",
        max_length=config["length"],
    )


rows = load_dataset("json", data_files=config["data"], split="train")
rows = rows.map(tokens, remove_columns=rows.column_names)
split = len(rows) - config["held_out"]

trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=str(out / "checkpoints"),
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        **config["training"],
    ),
    train_dataset=rows.select(range(split)),
    eval_dataset=rows.select(range(split, len(rows))),
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
held_out = trainer.evaluate()["eval_loss"]
trainer.save_model(str(out / "model"))
tokenizer.save_pretrained(out / "model")

if trainer.is_world_process_zero():
    speaker = pipeline("text-generation", model=str(out / "model"), device_map="auto")
    said = speaker("What is 2 plus 3?\n", max_new_tokens=24, do_sample=False)[0]["generated_text"]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    result = {
        "losses": losses,
        "held_out": held_out,
        "saved": str(out / "model"),
        "said": said,
        "ranks": trainer.args.world_size,
    }
    (out / "result.json").write_text(json.dumps(result, indent=1))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, held-out rows {held_out:.3f}: {said!r}")
