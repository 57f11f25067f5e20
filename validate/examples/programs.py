"""What the programs of examples/ leave (their configuration, rows and result.json), in neutral terms."""

import importlib
import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from validate.examples.run import Run
from validate.examples.trained import (
    IGNORED,
    Adapters,
    Batch,
    Trained,
    Weights,
    adapter_pairs,
    in_batches,
    nf4_rounded,
    padded_batches,
    preferences,
    seeded_order,
    shape_of,
    tensors,
    twice_rounded,
)

_AT_ONCE = 8
"""Rows that the Trainer evaluates at once; held-out rows are a multiple, so that its mean is the batches' mean."""


def read_program(run: Run) -> Trained:
    """Of a program with transformers: full training; adapters over 4-bit weights where it configures `lora`."""
    if "lora" not in run.config:
        return fully_trained(run, reloaded(run))
    start = nf4_rounded(tensors(run.model), shape_of(run.model))
    adapters = _adapters(run, run.config["lora"])
    # The adapter over the same 4-bit weights.
    torch, transformers, peft = (
        importlib.import_module(name) for name in ("torch", "transformers", "peft")
    )
    four_bit = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(
        run.model, quantization_config=four_bit, device_map={"": run.device}, torch_dtype="auto"
    )
    model = peft.PeftModel.from_pretrained(base, run.folder / run.result()["saved"])
    # In training, bitsandbytes dequantises on a CPU too; in inference it may repack and multiply in bfloat16.
    model.train()
    return adapters_trained(
        run, start, adapters, lambda tokens: model(tokens.to(run.device)).logits
    )


def read_preferences(run: Run) -> Trained:
    """Of a program that trains adapters by DPO, over weights as they are."""
    settings: Mapping[str, Any] = run.config["training"]
    rows, saved = (
        preferences(run.model, run.folder / run.config["data"]),
        run.folder / run.result()["saved"],
    )
    order, size = (
        seeded_order(len(rows), int(settings["seed"])),
        int(settings["per_device_train_batch_size"]),
    )
    transformers, peft = importlib.import_module("transformers"), importlib.import_module("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(run.model).to(run.device)
    model = peft.PeftModel.from_pretrained(base, saved).eval()
    return Trained(
        losses=[float(loss) for loss in run.result()["losses"]],
        shape=shape_of(run.model),
        start=tensors(run.model),
        batches=padded_batches(rows, order, size, int(settings["max_steps"])),
        preference=float(run.config["beta"]),
        rate=float(settings["learning_rate"]),
        adapters=_adapters(run, run.config["lora"]),
        saved=adapter_pairs(tensors(saved)),
        reload=lambda tokens: model(tokens.to(run.device)).logits,
    )


def read_rewards(run: Run) -> Mapping[str, object]:
    """Of a program that trains by rewards: plain torch would draw other answers, so they themselves tell."""
    result = run.result()
    first, last = (
        sum(part) / len(part) for part in (result["rewards"][:3], result["rewards"][-3:])
    )
    return {
        "first": first,
        "last": last,
        "rise": last - first,
        "steps": len(result["rewards"]),
        **result,
    }


def fully_trained(run: Run, reload: Callable[[Any], Any]) -> Trained:
    """Whole weights, trained by the Trainer. `reload` gives the logits of the saved result."""
    settings: Mapping[str, Any] = run.config["training"]
    result, rows = run.result(), rows_of(run)
    split = len(rows) - int(run.config["held_out"])
    held_out = rows[split:]
    evaluated = in_batches(held_out, range(len(held_out)), _AT_ONCE, len(held_out) // _AT_ONCE)
    ranks, steps = int(result.get("ranks", 1)), int(settings["max_steps"])
    size = ranks * int(settings["per_device_train_batch_size"])
    return Trained(
        losses=[float(loss) for loss in result["losses"]],
        shape=shape_of(run.model),
        start=tensors(run.model),
        batches=in_batches(rows, seeded_order(split, int(settings["seed"])), size, steps),
        rate=float(settings["learning_rate"]),
        all_labels=_counts_first_labels(),
        saved={} if "lora" in run.config else tensors(run.folder / result["saved"]),
        reload=reload,
        held_out=(float(result["held_out"]), evaluated),
        facts={"ranks": ranks, "compiled": run.compiled, "said": str(result.get("said", ""))},
    )


def _counts_first_labels() -> bool:
    """Whether this Trainer divides a loss by all labels, the first of a row among them, which nothing predicts: so it
    did until it counted `labels[..., 1:]`."""
    trainer = importlib.import_module("transformers").Trainer
    counting = getattr(trainer, "_get_num_items_in_batch", trainer.get_batch_samples)
    return "[..., 1:]" not in inspect.getsource(counting)


def adapters_trained(
    run: Run, start: Weights, adapters: Adapters, reload: Callable[[Any], Any]
) -> Trained:
    """Adapters over frozen weights: `start` is what they were trained over, they are merged into the model's own."""
    result, whole = run.result(), fully_trained(run, reload)
    merged = tensors(run.folder / result["merged"])
    saved = adapter_pairs(tensors(run.folder / result["saved"]))
    return replace(whole, start=start, adapters=adapters, saved=saved, merged=(whole.start, merged))


def rows_of(run: Run) -> list[Batch]:
    """Tokens and labels as the programs make them: the whole text, padded to one length."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.model)
    rows = []
    for line in (run.folder / run.config["data"]).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text = (
            " ".join(part for part in (row["instruction"], row["input"]) if part)
            + "\n"
            + row["output"]
        )
        numbers = tokenizer(
            text + tokenizer.eos_token,
            truncation=True,
            padding="max_length",
            max_length=run.config["length"],
        )["input_ids"]
        tokens = torch.tensor(numbers)
        rows.append((tokens, tokens.masked_fill(tokens == tokenizer.pad_token_id, IGNORED)))
    return rows


def _adapters(run: Run, lora: Mapping[str, Any]) -> Adapters:
    """peft draws A from the generator that the program seeded just before."""
    transformers, peft = (importlib.import_module(name) for name in ("transformers", "peft"))
    model = transformers.AutoModelForCausalLM.from_pretrained(run.model)
    transformers.set_seed(int(run.config["training"]["seed"]))
    tuned = peft.get_peft_model(
        model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **lora)
    )
    return Adapters(scale=lora["lora_alpha"] / lora["r"], start=drawn(tuned))


def drawn(tuned: Any) -> dict[str, tuple[Any, Any]]:
    """A and B by module, of a model that just got its adapters: B is zero there."""
    parameters = tuned.named_parameters()
    return adapter_pairs(
        {name: one.detach().float().cpu().clone() for name, one in parameters if ".lora_" in name}
    )


def reloaded(run: Run) -> Callable[[Any], Any]:
    automodel = importlib.import_module("transformers").AutoModelForCausalLM
    model = automodel.from_pretrained(run.folder / run.result()["saved"]).to(run.device).eval()
    return lambda tokens: model(tokens.to(run.device)).logits


def read_booster(run: Run) -> Trained:
    """As of every program, but for what the Booster does in its own way."""
    settings, rows = run.config["training"], rows_of(run)
    size, steps = int(settings["per_device_train_batch_size"]), int(settings["max_steps"])
    return replace(
        fully_trained(run, reloaded(run)),
        batches=in_batches(rows, range(len(rows)), size, steps),
        clip=0.0,
        all_labels=False,
        facts={"shards": len(list((run.folder / run.result()["saved"]).glob("*.safetensors")))},
    )


_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def read_unsloth(run: Run) -> Trained:
    """As of every program with adapters. unsloth stores weights in bfloat16, then in 4 bits."""
    os.environ["UNSLOTH_RETURN_LOGITS"] = "1"
    # Its adapter names the model by a path relative to where it was trained, and unsloth writes its cache there.
    os.chdir(run.folder)
    # unsloth patches transformers and peft, so it is imported before them.
    language = importlib.import_module("unsloth").FastLanguageModel
    torch = importlib.import_module("torch")
    stored = {
        name: tensor.to(torch.bfloat16).float() for name, tensor in tensors(run.model).items()
    }
    start = twice_rounded(stored, shape_of(run.model), run.device, torch.bfloat16)
    # unsloth seeds the generator itself before A is drawn.
    lora, seed = run.config["lora"], int(run.config["training"]["seed"])
    model, _ = language.from_pretrained(
        str(run.model), max_seq_length=run.config["length"], load_in_4bit=True
    )
    tuned = language.get_peft_model(model, target_modules=list(_TARGETS), random_state=seed, **lora)
    adapters = Adapters(scale=lora["lora_alpha"] / lora["r"], start=drawn(tuned))
    saved = str(run.folder / run.result()["saved"])
    again, _ = language.from_pretrained(
        saved, max_seq_length=run.config["length"], load_in_4bit=True
    )
    language.for_inference(again)
    reload = lambda tokens: again(input_ids=tokens.to(run.device)).logits  # noqa: E731
    found = adapters_trained(run, start, adapters, reload)
    # It divides a loss by the labels that are predicted, where the Trainer divides by all.
    return replace(found, all_labels=False)
