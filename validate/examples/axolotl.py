"""What `axolotl train` leaves: its checkpoints, its prepared data, its adapter or whole weights, and what it merged."""

import importlib
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from validate.examples.run import Run
from validate.examples.trained import (
    Adapters,
    Batch,
    Row,
    Trained,
    Weights,
    adapter_pairs,
    padded_batches,
    preferences,
    seeded_order,
    shape_of,
    stored_type,
    tensors,
    twice_rounded,
)


def read_axolotl(run: Run) -> Trained:
    """Of a configuration with `adapter`, or of full training; with `rl: dpo`, of preferences."""
    config, out = run.config, run.folder / run.config["output_dir"]
    weights, precision = tensors(run.model), _precision(run)
    loaded = {name: weight.to(precision).float() for name, weight in weights.items()}
    start, read_over = _bases(run, weights, loaded, precision)
    adapter, ranks = config.get("adapter"), _ranks(run)
    merged = out / "merged"
    last = max(out.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    state = json.loads((last / "trainer_state.json").read_text())
    # How many characters it said after the question, where it was asked (ask.sh).
    answer = out / "answer.txt"
    answered = (
        {"answered": said(answer.read_text(encoding="utf-8", errors="replace"))}
        if answer.is_file()
        else {}
    )
    return Trained(
        losses=[float(entry["loss"]) for entry in state["log_history"] if "loss" in entry],
        shape=shape_of(run.model),
        start=start,
        read_over=read_over,
        batches=_batches(run, ranks),
        parts=ranks,
        preference=float(config["rl_beta"]) if config.get("rl") == "dpo" else None,
        rate=float(config["learning_rate"]),
        adapters=_adapters(out, config) if adapter else None,
        saved=adapter_pairs(tensors(out))
        if adapter
        else tensors(merged if merged.is_dir() else out),
        merged=(_merged_into(run, weights, loaded), tensors(merged))
        if adapter and merged.is_dir()
        else None,
        reload=_reloaded(run, out, precision),
        facts={"ranks": ranks, **answered},
    )


def _precision(run: Run) -> Any:
    """axolotl loads weights in what it multiplies in: `bf16: auto` is bfloat16 where the GPU has it."""
    torch = importlib.import_module("torch")
    capable = run.device == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if capable and run.config["bf16"] == "auto" else torch.float32


def _bases(
    run: Run, weights: Weights, loaded: Weights, precision: Any
) -> tuple[Weights, Weights | None]:
    """What it trains over, and what its result is read over: weights in 4 bits are given back in the type that is
    trained in, and read in float32 (_reloaded)."""
    if not run.config.get("load_in_4bit"):
        return loaded, None
    float32, shape = importlib.import_module("torch").float32, shape_of(run.model)
    return twice_rounded(loaded, shape, run.device, precision), twice_rounded(
        weights, shape, run.device, float32
    )


def _merged_into(run: Run, weights: Weights, loaded: Weights) -> Weights:
    """What `axolotl merge-lora` adds to: weights as it loads them; or, where it merges file by file, as they are."""
    spec = importlib.util.find_spec("axolotl")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    by_file = any((folder / "cli" / "utils" / "lora_merge.py").is_file() for folder in folders)
    return weights if by_file and run.config.get("merge_method") != "legacy" else loaded


def _ranks(run: Run) -> int:
    """How many processes have rows of their own: those that its command starts, less what shares rows."""
    sharing = int(run.config.get("tensor_parallel_size") or 1) * int(
        run.config.get("context_parallel_size") or 1
    )
    words = " ".join(run.example["commands"]).replace("=", " ").split()
    asked = [
        int(words[at + 1])
        for at, word in enumerate(words)
        if word in ("--num_processes", "--nproc_per_node")
    ]
    return max(1, max(asked, default=1) // sharing)


def said(text: str) -> int:
    """Characters of the last answer that `axolotl inference` printed: between its prompt's end and its ruler."""
    _, marker, rest = text.rpartition("### Response:")
    return len(rest.partition("\n====")[0].replace("</s>", "").strip()) if marker else 0


def _adapters(folder: Path, config: Mapping[str, Any]) -> Adapters:
    """As they began: the first step moves no A, since every B is zero before it."""
    torch = importlib.import_module("torch")
    first = adapter_pairs(tensors(folder / "checkpoint-1"))
    start = {module: (a, torch.zeros_like(b)) for module, (a, b) in first.items()}
    return Adapters(scale=float(config["lora_alpha"]) / float(config["lora_r"]), start=start)


def _batches(run: Run, ranks: int) -> list[Batch]:
    """Rows as they were trained: `micro_batch_size` a rank and step, in the order of the file or of the seed."""
    config = run.config
    rows: Sequence[Sequence[Row]] = [(row,) for row in _prepared(run)]
    if config.get("rl") == "dpo":
        rows = preferences(run.model, run.folder / config["datasets"][0]["path"])
    order = (
        range(len(rows))
        if config.get("curriculum_sampling")
        else seeded_order(len(rows), int(config["seed"]))
    )
    return padded_batches(
        rows, order, int(config["micro_batch_size"]) * ranks, int(config["max_steps"])
    )


def _prepared(run: Run) -> list[Row]:
    """Tokens and labels as axolotl made them."""
    folder = next(
        (run.folder / run.config["dataset_prepared_path"]).glob("*/dataset_info.json")
    ).parent
    data = importlib.import_module("datasets").load_from_disk(str(folder))
    return [(list(row["input_ids"]), list(row["labels"])) for row in data]


def _reloaded(run: Run, out: Path, precision: Any) -> Callable[[Any], Any]:
    """By transformers and peft, multiplying in float32 whatever the weights are stored in.

    Whole weights are read in what they were saved in: after ZeRO 3 under torchrun, that was not `bf16`'s.
    """
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    merged = out / "merged"
    saved = (
        run.model
        if run.config.get("adapter")
        else merged
        if (merged / "config.json").is_file()
        else out
    )
    stored = precision if run.config.get("adapter") else getattr(torch, stored_type(saved))
    options: dict[str, Any] = {"device_map": {"": run.device}, "dtype": stored}
    if run.config.get("load_in_4bit"):
        # On a GPU bitsandbytes gives weights back in what they were quantised from (0.49.1: matmul_4bit), or in what
        # it multiplies in (0.50.2: gemm_4bit). With float32 for both they are the same, and nothing rounds to bfloat16,
        # which moves logits by 0.02 to 0.03.
        options["dtype"] = torch.float32
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(saved, **options)
    for parameter in model.parameters():
        if parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.float()
    if run.config.get("adapter"):
        model = importlib.import_module("peft").PeftModel.from_pretrained(model, out)
    # In training, bitsandbytes dequantises on a CPU too; in inference it may repack and multiply in bfloat16.
    model.train()
    return lambda tokens: model(tokens.to(run.device)).logits
