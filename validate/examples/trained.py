"""What an example trained, in the same form for all frameworks, and how to read its files.

The readers of single frameworks (axolotl.py, programs.py) fill in a TrainingResult, and evidence.py
compares it with the same training in plain torch.
"""

import importlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from validate.harness import nf4
from validate.harness.reference import Shape

Weights = Mapping[str, Any]
"""Name of a tensor, as transformers saves it -> the tensor, in float32 on the CPU."""
AdapterPair = tuple[Any, Any]
"""The LoRA matrices A [rank, in] and B [out, rank] of one module."""
AdapterPairs = Mapping[str, AdapterPair]
"""Name of a module (`model.layers.0.mlp.up_proj`) -> its A and B."""
Batch = tuple[Any, Any]
"""Tensors of tokens and labels, both [rows, length]; a label is IGNORED where there is no loss."""
Row = tuple[list[int], list[int]]
"""The tokens and labels of one row."""
IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """LoRA adapters over frozen weights, as they were before training."""

    scale: float
    """lora_alpha / r."""
    start: AdapterPairs


class Merge(NamedTuple):
    """The weights that adapters were merged into, and the merged weights."""

    base: Weights
    merged: Weights


class HeldOut(NamedTuple):
    """The loss that an example measured on held-out rows before it ended, and these rows."""

    loss: float
    batches: Sequence[Batch]


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """An example's run. What was saved and merged is read from files, without the framework."""

    losses: Sequence[float]
    """The loss of each step, as the framework logged it."""
    shape: Shape
    start: Weights
    """The model's weights before training; of adapters, the frozen weights below them."""
    batches: Sequence[Batch]
    """The batch of each step, in the order of training, with the rows of all ranks."""
    learning_rate: float
    """Of AdamW, constant."""
    saved: Weights | AdapterPairs
    """What was saved: all weights, or the adapters' A and B."""
    compute_logits: Callable[[Any], Any]
    """Returns the logits of tokens, computed by the saved result as the framework loads it."""
    largest_gradient_norm: float = 1.0
    """Gradients are clipped to this norm, which is the Trainer's default. 0: they are not."""
    counts_all_labels: bool = False
    """Whether losses are divided by the number of all labels, as some Trainers do, and not only of
    those that are predicted. A row's first token is not predicted."""
    adapters: Adapters | None = None
    reload_base: Weights | None = None
    """The weights below the adapters after loading, if they are rounded otherwise than `start`."""
    rank_count: int = 1
    """A step's rows fall into this many equal parts. Its loss is the mean of the parts' losses."""
    dpo_beta: float | None = None
    """DPO's beta. The first half of a step's rows is preferred to the second half."""
    merge: Merge | None = None
    held_out: HeldOut | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    """More evidence that only this framework has."""


def read_shape(model: Path) -> Shape:
    """Return a Llama's sizes, such as the number of layers, from the config.json in its folder.

    Raises FileNotFoundError if there is no such file, KeyError if it lacks a size.
    """
    config = json.loads((model / "config.json").read_text())
    rope_theta = config.get("rope_theta")
    if not rope_theta:
        # transformers 5 writes it into a section of its own.
        rope_theta = config["rope_parameters"]["rope_theta"]
    return Shape(
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        key_value_heads=config["num_key_value_heads"],
        positions=config["max_position_embeddings"],
        rope_theta=rope_theta,
        epsilon=config["rms_norm_eps"],
    )


def read_tensors(folder: Path) -> dict[str, Any]:
    """Return all tensors of a folder's safetensors files, by name, in float32.

    Several files are the shards of one model. Raises FileNotFoundError if there is none.
    """
    load_file = importlib.import_module("safetensors.torch").load_file
    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            tensors[name] = tensor.float()
    if tensors:
        return tensors

    contents = "no such folder"
    if folder.is_dir():
        contents = ", ".join(sorted(path.name for path in folder.iterdir()))
    raise FileNotFoundError(f"{folder.name} holds no safetensors file ({contents})")


_TORCH_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""safetensors' names of dtypes -> torch's."""


def read_stored_dtype(folder: Path) -> str:
    """Return torch's name of the dtype in which a folder's safetensors files store all weights.

    Raises ValueError if there are several dtypes, none, or another than torch's three usual ones.
    """
    dtypes: set[str] = set()
    for file in folder.glob("*.safetensors"):
        # A file begins with the length of its header, in 8 bytes, and the header in JSON:
        # https://huggingface.co/docs/safetensors
        with file.open("rb") as stream:
            header_length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(header_length))
        for name, tensor in header.items():
            if name != "__metadata__":
                dtypes.add(tensor["dtype"])

    if len(dtypes) != 1 or dtypes.isdisjoint(_TORCH_DTYPES):
        expected = f"one of {sorted(_TORCH_DTYPES)} is expected"
        raise ValueError(f"{folder.name} stores weights as {sorted(dtypes)}, {expected}")
    return _TORCH_DTYPES[dtypes.pop()]


def pair_adapter_tensors(tensors: Weights) -> dict[str, AdapterPair]:
    """Return the LoRA matrices A and B of each module, from tensors that peft has named.

    A name is `base_model.model.MODULE.lora_A.weight`, or with `lora_B`. Other tensors, and an A
    without its B, are left out.
    """
    pairs = {}
    for name, a in tensors.items():
        if ".lora_A." not in name:
            continue
        name_of_b = name.replace(".lora_A.", ".lora_B.")
        if name_of_b in tensors:
            module = name.removeprefix("base_model.model.").split(".lora_A.")[0]
            pairs[module] = (a, tensors[name_of_b])
    return pairs


def is_projection(name: str, shape: Shape) -> bool:
    """Return whether a weight belongs to a linear layer inside a block: these are quantised."""
    return name.removesuffix(".weight") in shape.projections


def round_to_nf4(weights: Weights, shape: Shape) -> dict[str, Any]:
    """Return the weights with every projection rounded to NF4, in blocks of 64, and back.

    This is computed in plain torch, with the blocks' scales in float32.
    """
    rounded = dict(weights)
    for name, weight in weights.items():
        if is_projection(name, shape):
            rounded[name] = nf4.round_weights(weight)
    return rounded


def round_to_double_quantised_nf4(
    weights: Weights, shape: Shape, device: str, dtype: Any
) -> dict[str, Any]:
    """Return the weights with every projection rounded to 4 bits (NF4) by bitsandbytes, and back.

    A projection is a linear layer inside a block of the model, of this `shape`. The weights are
    quantised from `dtype` on `device`, and returned in float32. "Double quantised" means that the
    scales of the blocks are themselves rounded to 8 bits. The check 4bit-llama tests bitsandbytes'
    NF4 itself.
    """
    functional = importlib.import_module("bitsandbytes.functional")
    rounded = dict(weights)
    for name, weight in weights.items():
        if is_projection(name, shape):
            packed, state = functional.quantize_4bit(
                weight.to(device, dtype),
                blocksize=64,
                compress_statistics=True,
                quant_type="nf4",
            )
            rounded[name] = functional.dequantize_4bit(packed, state).float().cpu()
    return rounded


def shuffle_row_numbers(row_count: int, seed: int) -> list[int]:
    """Return the numbers of a data set's rows in the order in which the Trainer takes them.

    By default it shuffles with accelerate's SeedableRandomSampler, which this repeats.
    """
    torch = importlib.import_module("torch")
    generator = torch.Generator()
    generator.manual_seed(seed)
    order: list[int] = torch.randperm(row_count, generator=generator).tolist()
    return order


def stack_batches(
    rows: Sequence[Batch], order: Sequence[int], batch_size: int, steps: int
) -> list[Batch]:
    """Return a batch for each step of a training, of rows of one length, taken in this order.

    A row is a pair of tensors of one dimension, tokens and labels. `order` has the rows' numbers,
    at least `batch_size` for each of the steps.
    """
    torch = importlib.import_module("torch")
    batches = []
    for step in range(steps):
        row_numbers = order[step * batch_size : (step + 1) * batch_size]
        tokens = torch.stack([rows[number][0] for number in row_numbers])
        labels = torch.stack([rows[number][1] for number in row_numbers])
        batches.append((tokens, labels))
    return batches


def pad_batches(
    rows: Sequence[Sequence[Row]], order: Sequence[int], batch_size: int, steps: int
) -> list[Batch]:
    """Return a batch (tokens, labels) for each training step, with the rows padded to one length.

    A row has one part, the tokens of a text and their labels. For DPO it has two, the chosen and
    the rejected answer. A batch has the first parts of all its rows, and then their second parts.
    Padding is on the right, where it changes nothing for the tokens before.

    rows: of any length.
    order: the numbers of rows, in the order in which they are taken.
    batch_size: rows of one step.
    """
    torch = importlib.import_module("torch")
    batches = []
    for step in range(steps):
        row_numbers = order[step * batch_size : (step + 1) * batch_size]
        parts = []
        for part in range(len(rows[0])):
            for number in row_numbers:
                parts.append(rows[number][part])

        length = max(len(tokens) for tokens, _ in parts)
        tokens = [pad(row_tokens, length, 0) for row_tokens, _ in parts]
        labels = [pad(row_labels, length, IGNORED) for _, row_labels in parts]
        batches.append((torch.tensor(tokens), torch.tensor(labels)))
    return batches


def pad(values: list[int], length: int, padding: int) -> list[int]:
    """Return the values, followed by as many paddings as it takes to reach this length."""
    return values + [padding] * (length - len(values))


def read_preference_rows(model: Path, file: Path) -> list[tuple[Row, Row]]:
    """Return the chosen and the rejected answer of each line of a JSONL file, as trl's tokens.

    A line has `prompt`, `chosen` and `rejected`. Each answer follows the prompt and ends with the
    tokenizer's end token; only the answer has labels. `model` is the folder of the tokenizer.
    """
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(model)

    def tokenise(text: str) -> list[int]:
        tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens

    # From trl 1 on a prompt begins with the token by which the tokenizer begins any text.
    has_begin_token = importlib.metadata.version("trl").partition(".")[0] != "0"
    begin_tokens = [tokenizer.bos_token_id] if has_begin_token else []
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        texts = json.loads(line)
        prompt = begin_tokens + tokenise(texts["prompt"])
        no_labels = [IGNORED] * len(prompt)
        chosen = [*tokenise(texts["chosen"]), tokenizer.eos_token_id]
        rejected = [*tokenise(texts["rejected"]), tokenizer.eos_token_id]
        chosen_row = (prompt + chosen, no_labels + chosen)
        rejected_row = (prompt + rejected, no_labels + rejected)
        rows.append((chosen_row, rejected_row))
    return rows
