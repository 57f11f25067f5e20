"""Train by a reward that is computed, by GRPO or RLOO, on what vLLM samples.

python3 online.py grpo.yaml
"""

import json
import sys
from pathlib import Path

import trl
import yaml
from datasets import load_dataset
from peft import LoraConfig
from transformers import pipeline

config = yaml.safe_load(Path(sys.argv[1]).read_text())
out = Path(config["out"])
Method, Settings = (getattr(trl, config["method"] + kind) for kind in ("Trainer", "Config"))


def digits(completions, **_others):
    """The share of an answer's characters that are digits."""
    said = [completion[0]["content"] for completion in completions]
    return [
        sum(letter.isascii() and letter.isdigit() for letter in one) / max(1, len(one))
        for one in said
    ]


def conversation(row):
    return {
        "prompt": [
            {"role": "user", "content": " ".join((row["instruction"], row["input"])).strip()}
        ]
    }


rows = load_dataset("json", data_files=config["data"], split="train")
trainer = Method(
    model=config["model"],
    reward_funcs=digits,
    train_dataset=rows.map(conversation, remove_columns=rows.column_names),
    args=Settings(
        output_dir=str(out / "checkpoints"),
        use_vllm=True,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        **config["training"],
    ),
    peft_config=LoraConfig(target_modules="all-linear", **config["lora"])
    if "lora" in config
    else None,
)
trainer.train()
trainer.save_model(str(out / "model"))

speaker = pipeline("text-generation", model=str(out / "model"), tokenizer=trainer.processing_class)
asked = conversation(rows[0])["prompt"]
said = speaker(asked, max_new_tokens=24, do_sample=False)[0]["generated_text"][-1]["content"]
steps = [entry for entry in trainer.state.log_history if "reward" in entry]
rewards = [step["reward"] for step in steps]
ratios = [step.get("sampling/importance_sampling_ratio/mean") for step in steps]  # RLOO has none
again = digits([[{"content": said}]])[0]
result = {
    "rewards": rewards,
    "ratios": ratios,
    "saved": str(out / "model"),
    "said": said,
    "said_reward": again,
}
(out / "result.json").write_text(json.dumps(result, indent=1))
print(f"reward {rewards[0]:.3f} -> {rewards[-1]:.3f}: {said!r}")
