"""Train adapters with unsloth over a model in 4-bit; save, merge and load them again.

python3 sft.py sft.yaml
"""

import json
import sys
from pathlib import Path

import yaml
from unsloth import FastLanguageModel  # before trl and transformers: it patches them

from datasets import load_dataset  # isort: skip
from trl import SFTConfig, SFTTrainer  # isort: skip

config = yaml.safe_load(Path(sys.argv[1]).read_text())
out = Path(config["out"])

model, tokenizer = FastLanguageModel.from_pretrained(
    config["model"], max_seq_length=config["length"], load_in_4bit=True
)
model = FastLanguageModel.get_peft_model(
    model,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    use_gradient_checkpointing="unsloth",
    random_state=config["training"]["seed"],
    **config["lora"],
)


def text(row):
    asked = " ".join(part for part in (row["instruction"], row["input"]) if part)
    return {"text": asked + "\n" + row["output"] + tokenizer.eos_token}


rows = load_dataset("json", data_files=config["data"], split="train")
rows = rows.map(text, remove_columns=rows.column_names)
split = len(rows) - config["held_out"]

trainer = SFTTrainer(
    model=model,
    processing_class=tokenizer,
    train_dataset=rows.select(range(split)),
    eval_dataset=rows.select(range(split, len(rows))),
    args=SFTConfig(
        output_dir=str(out / "checkpoints"),
        dataset_text_field="text",
        max_length=config["length"],
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        **config["training"],
    ),
)
trainer.train()
held_out = trainer.evaluate()["eval_loss"]
model.save_pretrained(str(out / "adapter"))
tokenizer.save_pretrained(str(out / "adapter"))
model.save_pretrained_merged(str(out / "merged"), tokenizer, save_method="merged_16bit")

model, tokenizer = FastLanguageModel.from_pretrained(
    str(out / "adapter"), max_seq_length=config["length"], load_in_4bit=True
)
FastLanguageModel.for_inference(model)
asked = tokenizer("What is 2 plus 3?\n", return_tensors="pt").to("cuda")
said = tokenizer.decode(
    model.generate(**asked, max_new_tokens=24, do_sample=False)[0], skip_special_tokens=True
)
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
saved = {"saved": str(out / "adapter"), "merged": str(out / "merged")}
(out / "result.json").write_text(
    json.dumps({"losses": losses, "held_out": held_out, **saved, "said": said}, indent=1)
)
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, held-out rows {held_out:.3f}: {said!r}")
