"""The programs of examples/: each has the configuration, the rows and the result.json that are read here."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from validate.examples.run import Run
from validate.examples.trained import (
    Adapters,
    Batch,
    Optimiser,
    Trained,
    adapter_pairs,
    in_batches,
    nf4_rounded,
    seeded_order,
    shape_of,
    tensors,
)

_AT_ONCE = 8
"""Rows that the Trainer evaluates at once; held-out rows are a multiple, so that its mean is the batches' mean."""


def read(run: Run) -> Trained:
    """Of a program with transformers: full training; adapters over 4-bit weights where it configures `lora`."""
    return trained(run, _adapters_reloaded(run) if "lora" in run.config else _reloaded(run))


def trained(run: Run, reload: Callable[[Any], Any]) -> Trained:
    """The same, with a framework's own way to load the result."""
    settings: Mapping[str, Any] = run.config["training"]
    result, weights, shape = run.result(), tensors(run.model), shape_of(run.model)
    rows = _rows(run)
    split = len(rows) - int(run.config["held_out"])
    size, steps = int(settings["per_device_train_batch_size"]), int(settings["max_steps"])
    apart, lora = rows[split:], run.config.get("lora")
    return Trained(
        losses=[float(loss) for loss in result["losses"]],
        shape=shape,
        start=nf4_rounded(weights, shape) if lora else weights,
        batches=in_batches(rows, seeded_order(split, int(settings["seed"])), size, steps),
        optimiser=Optimiser(rate=float(settings["learning_rate"])),
        adapters=_adapters(run, lora) if lora else None,
        saved=(adapter_pairs if lora else tensors)(run.folder / result["saved"]),
        merged=(weights, tensors(run.folder / result["merged"])) if lora else None,
        reload=reload,
        held_out=(float(result["held_out"]), _evaluated(apart)),
    )


def _evaluated(rows: Sequence[Batch]) -> list[Batch]:
    return in_batches(rows, range(len(rows)), _AT_ONCE, len(rows) // _AT_ONCE)


def _rows(run: Run) -> list[Batch]:
    """Tokens and labels as the programs make them: the whole text, padded to one length."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.model)
    rows = []
    for line in (run.folder / run.config["data"]).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text = " ".join(part for part in (row["instruction"], row["input"]) if part) + "\n" + row["output"]
        numbers = tokenizer(
            text + tokenizer.eos_token, truncation=True, padding="max_length", max_length=run.config["length"]
        )["input_ids"]
        tokens = torch.tensor(numbers)
        rows.append((tokens, tokens.masked_fill(tokens == tokenizer.pad_token_id, -100)))
    return rows


def _adapters(run: Run, lora: Mapping[str, Any]) -> Adapters:
    """peft draws A from the generator that the program seeded just before."""
    torch, transformers, peft = (importlib.import_module(name) for name in ("torch", "transformers", "peft"))
    model = transformers.AutoModelForCausalLM.from_pretrained(run.model)
    transformers.set_seed(int(run.config["training"]["seed"]))
    tuned = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **lora))
    named = dict(tuned.named_parameters())
    start = {
        name.removeprefix("base_model.model.").split(".lora_A.")[0]: (
            value.detach().clone(),
            torch.zeros_like(named[name.replace(".lora_A.", ".lora_B.")]),
        )
        for name, value in named.items()
        if ".lora_A." in name
    }
    return Adapters(scale=lora["lora_alpha"] / lora["r"], start=start)


def _reloaded(run: Run) -> Callable[[Any], Any]:
    automodel = importlib.import_module("transformers").AutoModelForCausalLM
    model = automodel.from_pretrained(run.folder / run.result()["saved"]).to(run.device).eval()
    return lambda tokens: model(tokens.to(run.device)).logits


def _adapters_reloaded(run: Run) -> Callable[[Any], Any]:
    """The adapter over the same 4-bit weights."""
    torch, transformers, peft = (importlib.import_module(name) for name in ("torch", "transformers", "peft"))
    four_bit = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(
        run.model, quantization_config=four_bit, device_map={"": run.device}
    )
    model = peft.PeftModel.from_pretrained(base, run.folder / run.result()["saved"])
    # In training, bitsandbytes dequantises on a CPU too; in inference it may repack and multiply in bfloat16.
    model.train()
    return lambda tokens: model(tokens.to(run.device)).logits
