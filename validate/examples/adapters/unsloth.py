"""unsloth's examples: the adapters that it draws, and its own way to load them again. It needs a GPU."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from validate.examples.adapters import programs
from validate.examples.run import Run
from validate.examples.trained import Adapters, Trained, shape_of, tensors, twice_rounded

_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def read(run: Run) -> Trained:
    """As of every program with adapters. unsloth stores weights in bfloat16, then in 4 bits."""
    os.environ.update(UNSLOTH_RETURN_LOGITS="1", UNSLOTH_DISABLE_STATISTICS="1", HF_HUB_OFFLINE="1")
    # Its adapter names the model by a path relative to where it was trained, and unsloth writes its cache there.
    os.chdir(run.folder)
    # unsloth patches transformers and peft, so it is imported before them.
    language = importlib.import_module("unsloth").FastLanguageModel
    torch = importlib.import_module("torch")
    stored = {name: tensor.to(torch.bfloat16).float() for name, tensor in tensors(run.model).items()}
    start = twice_rounded(stored, shape_of(run.model), run.device, torch.bfloat16)
    found = programs.adapters_trained(run, start, _adapters(run, language), _reloaded(run, language))
    # It divides a loss by the labels that are predicted, where the Trainer divides by all.
    return replace(found, all_labels=False)


def _adapters(run: Run, language: Any) -> Adapters:
    """unsloth seeds the generator itself before A is drawn."""
    lora, seed = run.config["lora"], int(run.config["training"]["seed"])
    model, _ = language.from_pretrained(str(run.model), max_seq_length=run.config["length"], load_in_4bit=True)
    tuned = language.get_peft_model(model, target_modules=list(_TARGETS), random_state=seed, **lora)
    return Adapters(scale=lora["lora_alpha"] / lora["r"], start=programs.drawn(tuned))


def _reloaded(run: Run, language: Any) -> Callable[[Any], Any]:
    saved = str(run.folder / run.result()["saved"])
    model, _ = language.from_pretrained(saved, max_seq_length=run.config["length"], load_in_4bit=True)
    language.for_inference(model)
    return lambda tokens: model(input_ids=tokens.to(run.device)).logits
