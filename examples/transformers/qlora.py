"""Train adapters over a model in 4-bit (QLoRA), save them, and merge them into the model.

python3 qlora.py qlora.yaml
"""

import json
import sys
from pathlib import Path

import torch
import yaml
from datasets import load_dataset
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

config = yaml.safe_load(Path(sys.argv[1]).read_text())
out = Path(config["out"])

tokenizer = AutoTokenizer.from_pretrained(config["model"])
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
four_bit = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
)
model = AutoModelForCausalLM.from_pretrained(
    config["model"], quantization_config=four_bit, device_map="auto", dtype="auto"
)
model = prepare_model_for_kbit_training(
    model, gradient_checkpointing_kwargs={"use_reentrant": False}
)
set_seed(config["training"]["seed"])
model = get_peft_model(
    model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **config["lora"])
)
model.print_trainable_parameters()


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
trainer.save_model(str(out / "adapter"))

# 4-bit weights can't hold exactly what the adapters add: these are merged into the weights as they
# were before.
base = AutoModelForCausalLM.from_pretrained(config["model"], device_map="auto", dtype="auto")
merged = PeftModel.from_pretrained(base, str(out / "adapter")).merge_and_unload()
merged.save_pretrained(out / "merged")
tokenizer.save_pretrained(out / "merged")

speaker = pipeline("text-generation", model=str(out / "merged"), device_map="auto")
said = speaker("What is 2 plus 3?\n", max_new_tokens=24, do_sample=False)[0]["generated_text"]
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
saved = {"saved": str(out / "adapter"), "merged": str(out / "merged")}
(out / "result.json").write_text(
    json.dumps({"losses": losses, "held_out": held_out, **saved, "said": said}, indent=1)
)
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, held-out rows {held_out:.3f}: {said!r}")
