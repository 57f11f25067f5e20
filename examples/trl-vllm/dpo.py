"""Train adapters that prefer one answer to another, by DPO, and save them.

python3 dpo.py dpo.yaml
"""

import json
import sys
from pathlib import Path

import torch
import yaml
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

config = yaml.safe_load(Path(sys.argv[1]).read_text())
out = Path(config["out"])

trainer = DPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(config["model"], dtype="auto"),
    processing_class=AutoTokenizer.from_pretrained(config["model"]),
    train_dataset=load_dataset("json", data_files=config["data"], split="train"),
    args=DPOConfig(
        output_dir=str(out / "checkpoints"),
        beta=config["beta"],
        max_length=config["length"],
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        **config["training"],
    ),
    peft_config=LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **config["lora"]),
)
trainer.train()
trainer.save_model(str(out / "adapter"))

losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
margins = [entry["rewards/margins"] for entry in trainer.state.log_history if "loss" in entry]
result = {"losses": losses, "margins": margins, "saved": str(out / "adapter")}
(out / "result.json").write_text(json.dumps(result, indent=1))
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, the margin {margins[-1]:.3f}")
