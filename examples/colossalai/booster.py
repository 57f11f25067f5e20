"""Trains with ColossalAI's Booster and saves in shards. The command is in ../README.md."""

import json
import sys
from itertools import islice
from pathlib import Path

import colossalai
import torch
import torch.distributed
import yaml
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin, LowLevelZeroPlugin, TorchDDPPlugin
from colossalai.nn.optimizer import HybridAdam
from colossalai.utils import get_current_device
from transformers import AutoModelForCausalLM, AutoTokenizer

PLUGINS = {"ddp": TorchDDPPlugin, "zero": LowLevelZeroPlugin, "gemini": GeminiPlugin}
OPTIMIZERS = {"AdamW": torch.optim.AdamW, "HybridAdam": HybridAdam}

config = yaml.safe_load(Path(sys.argv[1]).read_text())
training, out = config["training"], Path(config["out"])
colossalai.launch_from_torch(seed=training["seed"])

tokenizer = AutoTokenizer.from_pretrained(config["model"])
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(config["model"])


def tokens(row):
    text = (
        " ".join(part for part in (row["instruction"], row["input"]) if part) + "\n" + row["output"]
    )
    text += tokenizer.eos_token
    found = tokenizer(
        text,
        truncation=True,
        padding="max_length",
        max_length=config["length"],
        return_tensors="pt",
    )
    numbers, mask = found["input_ids"][0], found["attention_mask"][0]
    return {
        "input_ids": numbers,
        "attention_mask": mask,
        "labels": numbers.masked_fill(mask == 0, -100),
    }


rows = [tokens(json.loads(line)) for line in Path(config["data"]).read_text().splitlines()]
split = len(rows) - config["held_out"]

plugin = PLUGINS[config["plugin"]](**config.get("plugin_options", {}))
optimizer = OPTIMIZERS[training["optimizer"]](
    model.parameters(), lr=training["learning_rate"], weight_decay=0.0
)
batches = plugin.prepare_dataloader(
    rows[:split], training["per_device_train_batch_size"], drop_last=True
)
booster = Booster(plugin=plugin)
model, optimizer, _, batches, _ = booster.boost(model, optimizer, dataloader=batches)


def loss_of(batch):
    return model(**{name: tensor.to(get_current_device()) for name, tensor in batch.items()}).loss


losses = []
model.train()
for batch in islice(batches, training["max_steps"]):
    loss = loss_of(batch)
    booster.backward(loss, optimizer)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())

model.eval()
apart = plugin.prepare_dataloader(rows[split:], training["per_device_train_batch_size"])
with torch.no_grad():
    held_out = sum(loss_of(batch).item() for batch in apart) / len(apart)

booster.save_model(
    model,
    str(out / "model"),
    shard=True,
    size_per_shard=config["shard_megabytes"],
    use_safetensors=True,
)
if torch.distributed.get_rank() == 0:
    AutoModelForCausalLM.from_pretrained(config["model"]).config.save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    result = {"losses": losses, "held_out": held_out, "saved": str(out / "model")}
    (out / "result.json").write_text(json.dumps(result, indent=1))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, held-out rows {held_out:.3f}")
torch.distributed.destroy_process_group()
