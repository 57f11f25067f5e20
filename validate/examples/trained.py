"""What an example did, in neutral terms: adapters of frameworks fill it in, evidence.py compares it."""

import importlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validate.harness import nf4
from validate.harness.reference import Shape

Weights = Mapping[str, Any]
"""Tensor by the name that transformers saves it with, in float32, on the CPU."""
Pairs = Mapping[str, tuple[Any, Any]]
"""Module (`model.layers.0.mlp.up_proj`) -> A [rank, in] and B [out, rank] of its adapter."""
Batch = tuple[Any, Any]
"""Tokens and labels, both [rows, length]; IGNORED where there is no loss."""
Row = tuple[list[int], list[int]]
"""The same of one row, of its own length."""
IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """LoRA over frozen weights."""

    scale: float
    """lora_alpha / r."""
    start: Pairs


@dataclass(frozen=True, kw_only=True)
class Trained:
    """An example's run. `saved` and `merged` are read from files, without the framework."""

    losses: Sequence[float]
    """One a step."""
    shape: Shape
    start: Weights
    batches: Sequence[Batch]
    """One a step, in the order trained, all rows of all ranks."""
    rate: float
    """Of AdamW, constant."""
    saved: Weights | Pairs
    """Whole weights; of adapters, A and B."""
    reload: Callable[[Any], Any]
    """Logits of tokens, by the saved result as the framework itself loads it."""
    clip: float = 1.0
    """Largest norm of all gradients; the Trainer's default. 0: none."""
    all_labels: bool = False
    """Whether its losses are divided by the number of all labels. The Trainer does so, though none is predicted for a
    row's first token; models themselves divide by those that are predicted."""
    adapters: Adapters | None = None
    read_over: Weights | None = None
    """What `reload` reads adapters over, where it differs from `start`: the same weights, of another rounding."""
    parts: int = 1
    """A step's rows fall into so many equal parts, one a rank: its loss is the mean of their means."""
    preference: float | None = None
    """DPO's beta: the first half of a step's rows is preferred to the second."""
    merged: tuple[Weights, Weights] | None = None
    """Where the example merged its adapters: the weights that they were merged into, and what came of it."""
    held_out: tuple[float, Sequence[Batch]] | None = None
    """The loss that the example measured at its end, before anything was loaded again, and what on."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """More evidence, of this framework."""


_TORCH_TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def shape_of(model: Path) -> Shape:
    """The shape of a Llama as transformers saved it."""
    config = json.loads((model / "config.json").read_text())
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]  # transformers 5
    return Shape(
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        key_value_heads=config["num_key_value_heads"],
        positions=config["max_position_embeddings"],
        rope_theta=theta,
        epsilon=config["rms_norm_eps"],
    )


def tensors(folder: Path) -> dict[str, Any]:
    """All tensors of the safetensors files of a folder: one file, or shards."""
    load = importlib.import_module("safetensors.torch").load_file
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update({name: tensor.float() for name, tensor in load(file).items()})
    if not found:
        there = (
            ", ".join(sorted(path.name for path in folder.iterdir()))
            if folder.is_dir()
            else "no such folder"
        )
        raise FileNotFoundError(f"{folder.name} holds no safetensors file ({there})")
    return found


def stored_type(folder: Path) -> str:
    """torch's name of the dtype that a folder's safetensors files store weights in. Raises ValueError for several.

    A file begins with the length of its header, 8 bytes, and the header, JSON: https://huggingface.co/docs/safetensors
    """
    found: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        found |= {row["dtype"] for name, row in header.items() if name != "__metadata__"}
    if len(found) != 1 or found.isdisjoint(_TORCH_TYPES):
        raise ValueError(
            f"{folder.name} stores weights as {sorted(found)}, one of {sorted(_TORCH_TYPES)} is expected"
        )
    return _TORCH_TYPES[found.pop()]


def adapter_pairs(halves: Weights) -> dict[str, tuple[Any, Any]]:
    """A and B by module, of tensors as peft names them. A half without its other half is left out."""
    return {
        name.removeprefix("base_model.model.").split(".lora_A.")[0]: (a, halves[other])
        for name, a in halves.items()
        if ".lora_A." in name and (other := name.replace(".lora_A.", ".lora_B.")) in halves
    }


def nf4_rounded(weights: Weights, shape: Shape) -> dict[str, Any]:
    """The weights, with every projection rounded to NF4 in blocks of 64 and back, in plain torch."""
    return {
        name: nf4.round_weights(weight)
        if name.removesuffix(".weight") in shape.projections
        else weight
        for name, weight in weights.items()
    }


def twice_rounded(weights: Weights, shape: Shape, device: str, precision: Any) -> dict[str, Any]:
    """The same with the blocks' scales in 8 bits ("double quantisation"), by bitsandbytes. `4bit-llama` judges NF4 by
    hand."""
    functional = importlib.import_module("bitsandbytes.functional")
    found = dict(weights)
    for name, weight in weights.items():
        if name.removesuffix(".weight") in shape.projections:
            packed, state = functional.quantize_4bit(
                weight.to(device, precision),
                blocksize=64,
                compress_statistics=True,
                quant_type="nf4",
            )
            found[name] = functional.dequantize_4bit(packed, state).float().cpu()
    return found


def seeded_order(rows: int, seed: int) -> list[int]:
    """The order in which accelerate's SeedableRandomSampler gives a data set: the Trainer's default."""
    torch = importlib.import_module("torch")
    generator = torch.Generator()
    generator.manual_seed(seed)
    order: list[int] = torch.randperm(rows, generator=generator).tolist()
    return order


def in_batches(rows: Sequence[Batch], order: Sequence[int], size: int, steps: int) -> list[Batch]:
    """Rows of one length each, in this order, `size` a step."""
    torch = importlib.import_module("torch")
    chosen = [order[step * size : (step + 1) * size] for step in range(steps)]
    return [
        (
            torch.stack([rows[index][0] for index in step]),
            torch.stack([rows[index][1] for index in step]),
        )
        for step in chosen
    ]


def preferences(model: Path, file: Path) -> list[tuple[Row, Row]]:
    """Of a file's rows: what was chosen and what was rejected, each after its prompt, as trl makes tokens of them.

    From trl 1 on a prompt is tokenised as any text, with the token that begins it.
    """
    begun = importlib.metadata.version("trl").partition(".")[0] != "0"
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(model)

    def numbers(text: str) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        prompt = [*([tokenizer.bos_token_id] if begun else []), *numbers(row["prompt"])]
        chosen, rejected = (
            [*numbers(row[key]), tokenizer.eos_token_id] for key in ("chosen", "rejected")
        )
        ignored = [IGNORED] * len(prompt)
        rows.append(
            (([*prompt, *chosen], ignored + chosen), ([*prompt, *rejected], ignored + rejected))
        )
    return rows


def padded_batches(
    rows: Sequence[Sequence[Row]], order: Sequence[int], size: int, steps: int
) -> list[Batch]:
    """Rows in this order, `size` a step, padded on the right, where it changes nothing for the tokens before it.

    Of rows with two parts: all first ones, then all second ones.
    """
    torch, found = importlib.import_module("torch"), []
    for step in range(steps):
        chosen = [rows[index] for index in order[step * size : (step + 1) * size]]
        parts = [row[part] for part in range(len(rows[0])) for row in chosen]
        longest = max(len(tokens) for tokens, _ in parts)
        tokens = [[*row, *[0] * (longest - len(row))] for row, _ in parts]
        labels = [[*row, *[IGNORED] * (longest - len(row))] for _, row in parts]
        found.append((torch.tensor(tokens), torch.tensor(labels)))
    return found
