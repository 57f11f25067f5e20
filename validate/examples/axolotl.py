"""Read what an example that runs axolotl left: checkpoints, prepared data, adapters, weights."""

import importlib
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from validate.examples.run import Run
from validate.examples.trained import (
    AdapterPairs,
    Adapters,
    Batch,
    Merge,
    Row,
    TrainingResult,
    Weights,
    pad_batches,
    pair_adapter_tensors,
    read_preference_rows,
    read_shape,
    read_stored_dtype,
    read_tensors,
    round_to_double_quantised_nf4,
    shuffle_row_numbers,
)


def read_axolotl(run: Run) -> TrainingResult:
    """Return what `axolotl train` trained, with all that is needed to repeat it in plain torch.

    `run` is the example that has run to its end: its folder and its configuration say what it was.
    With `adapter` in its configuration that is adapters, otherwise all weights. With `rl: dpo` it
    learned preferences. If the example asked the trained model a question (ask.sh), the fact
    "answered" is the length of the answer in characters.
    """
    config = run.config
    out = run.folder / config["output_dir"]
    dtype = choose_training_dtype(run)
    weights = read_starting_weights(run, dtype)

    # The run has saved adapters, and maybe merged them, or all weights.
    merged_folder = out / "merged"
    adapters, merge = None, None
    saved: Weights | AdapterPairs
    if config.get("adapter"):
        adapters = read_start_of_adapters(out, config)
        saved = pair_adapter_tensors(read_tensors(out))
        if merged_folder.is_dir():
            merge_base = weights.stored if merges_file_by_file(config) else weights.loaded
            merge = Merge(merge_base, read_tensors(merged_folder))
    else:
        # Shards are merged into a folder of their own.
        saved = read_tensors(merged_folder if merged_folder.is_dir() else out)

    rank_count = count_data_ranks(run)
    facts: dict[str, object] = {"ranks": rank_count}
    answer_file = out / "answer.txt"
    if answer_file.is_file():
        answer = answer_file.read_text(encoding="utf-8", errors="replace")
        facts["answered"] = measure_answer(answer)
    return TrainingResult(
        losses=read_losses(out),
        shape=read_shape(run.model),
        start=weights.start,
        reload_base=weights.reload_base,
        batches=rebuild_batches(run, rank_count),
        rank_count=rank_count,
        dpo_beta=float(config["rl_beta"]) if config.get("rl") == "dpo" else None,
        learning_rate=float(config["learning_rate"]),
        adapters=adapters,
        saved=saved,
        merge=merge,
        compute_logits=load_result(run, out, dtype),
        facts=facts,
    )


class StartingWeights(NamedTuple):
    """The weights of a model before axolotl trains it, as different steps have them."""

    stored: Weights  # as its files store them
    loaded: Weights  # rounded to the dtype of training, in which axolotl loads them
    start: Weights  # with which training multiplies: rounded to 4 bits as well, if it does so
    reload_base: Weights | None  # the same as `load_result` has them; None: as at the start


def read_starting_weights(run: Run, training_dtype: Any) -> StartingWeights:
    """Return the weights of a run's model before training, as stored, loaded and trained with.

    They differ by rounding. axolotl loads the weights in `training_dtype`, a dtype of torch. With
    `load_in_4bit`, they are rounded to 4 bits as well. All are returned as float32.
    """
    stored = read_tensors(run.model)
    loaded = {name: weight.to(training_dtype).float() for name, weight in stored.items()}
    if not run.config.get("load_in_4bit"):
        return StartingWeights(stored, loaded, start=loaded, reload_base=None)

    # The same 4-bit weights twice: training dequantises them to its dtype, and `load_result` to
    # float32.
    float32 = importlib.import_module("torch").float32
    shape = read_shape(run.model)
    start = round_to_double_quantised_nf4(loaded, shape, run.device, training_dtype)
    reload_base = round_to_double_quantised_nf4(stored, shape, run.device, float32)
    return StartingWeights(stored, loaded, start, reload_base)


def choose_training_dtype(run: Run) -> Any:
    """Return the torch dtype that axolotl trains in: `bf16: auto` is bfloat16 if the GPU has it."""
    torch = importlib.import_module("torch")
    if run.device != "cuda" or not torch.cuda.is_bf16_supported():
        return torch.float32
    return torch.bfloat16 if run.config["bf16"] == "auto" else torch.float32


def read_losses(out: Path) -> list[float]:
    """Return the loss of every step from the last checkpoint's trainer_state.json."""
    checkpoints = list(out.glob("checkpoint-*"))
    last_checkpoint = max(checkpoints, key=lambda path: int(path.name.rpartition("-")[2]))
    state = json.loads((last_checkpoint / "trainer_state.json").read_text())
    # Other entries of the log, such as the last, have no loss of a step.
    return [float(entry["loss"]) for entry in state["log_history"] if "loss" in entry]


def merges_file_by_file(config: Mapping[str, Any]) -> bool:
    """Return whether `axolotl merge-lora` adds adapters to the weights as their files store them.

    Otherwise it loads the model and adds them to the weights in the dtype of training. Releases
    with the file lora_merge.py merge by file, unless `merge_method` is `legacy`.
    """
    spec = importlib.util.find_spec("axolotl")
    if spec is None or config.get("merge_method") == "legacy":
        return False
    for folder in spec.submodule_search_locations or ():
        if Path(folder, "cli", "utils", "lora_merge.py").is_file():
            return True
    return False


def count_data_ranks(run: Run) -> int:
    """Return how many of an example's processes train on rows of their own.

    That is the number of processes that its command starts, divided by the number that share rows
    in tensor or context parallelism.
    """
    tensor_parallel = int(run.config.get("tensor_parallel_size") or 1)
    context_parallel = int(run.config.get("context_parallel_size") or 1)
    # The option that sets the number stands in a command. Both spellings count:
    # `--num_processes 2` and `--num_processes=2`.
    words = " ".join(run.example["commands"]).replace("=", " ").split()
    processes = 1
    for index, word in enumerate(words):
        if word in ("--num_processes", "--nproc_per_node"):
            processes = max(processes, int(words[index + 1]))
    return max(1, processes // (tensor_parallel * context_parallel))


def measure_answer(output: str) -> int:
    """Return the length of the last answer in the output of `axolotl inference`, in characters.

    The answer stands after the end of the prompt and before a ruler of `=`. 0 if there is none.
    """
    _, prompt_end, answer_and_more = output.rpartition("### Response:")
    if not prompt_end:
        return 0
    answer = answer_and_more.partition("\n====")[0]
    return len(answer.replace("</s>", "").strip())


def read_start_of_adapters(out: Path, config: Mapping[str, Any]) -> Adapters:
    """Return the adapters as they were before training, from the checkpoint of the first step.

    B is zero at first. So the first step moves no A, and the checkpoint has A as it was.
    """
    torch = importlib.import_module("torch")
    start = {}
    for module, (a, b) in pair_adapter_tensors(read_tensors(out / "checkpoint-1")).items():
        start[module] = (a, torch.zeros_like(b))
    return Adapters(scale=float(config["lora_alpha"]) / float(config["lora_r"]), start=start)


def rebuild_batches(run: Run, rank_count: int) -> list[Batch]:
    """Return the batch of every step, with the rows of all ranks in the order of training.

    Ranks are the processes that train together: `rank_count` of them have rows of their own. A
    batch is tensors of tokens and labels. The order is that of the file (`curriculum_sampling`) or
    the one that the seed gives.
    """
    # A row is a tuple of parts: in DPO the chosen and the rejected answer, otherwise one.
    config = run.config
    rows: Sequence[Sequence[Row]]
    if config.get("rl") == "dpo":
        rows = read_preference_rows(run.model, run.folder / config["datasets"][0]["path"])
    else:
        rows = [(row,) for row in read_prepared_rows(run)]

    order: Sequence[int]
    if config.get("curriculum_sampling"):
        order = range(len(rows))
    else:
        order = shuffle_row_numbers(len(rows), int(config["seed"]))
    batch_size = int(config["micro_batch_size"]) * rank_count
    # One batch a step. Each is padded to its longest part, and no row is used twice.
    return pad_batches(rows, order, batch_size, int(config["max_steps"]))


def read_prepared_rows(run: Run) -> list[Row]:
    """Return tokens and labels of every row, from the data set that axolotl prepared and saved."""
    prepared = run.folder / run.config["dataset_prepared_path"]
    info_file = next(prepared.glob("*/dataset_info.json"))
    data_set = importlib.import_module("datasets").load_from_disk(str(info_file.parent))
    return [(list(row["input_ids"]), list(row["labels"])) for row in data_set]


def load_result(run: Run, out: Path, training_dtype: Any) -> Callable[[Any], Any]:
    """Load the saved result by transformers and peft; return a function from tokens to its logits.

    All products are computed in float32, in whatever dtype the weights are stored.
    """
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")

    # Which weights are loaded, and in which dtype: those below the adapters in the dtype of
    # training, as axolotl loaded them; others in the dtype in which they were saved, which after
    # ZeRO 3 under torchrun was not that of training.
    has_adapter = bool(run.config.get("adapter"))
    if has_adapter:
        model_folder = run.model
        dtype = training_dtype
    else:
        merged_folder = out / "merged"
        model_folder = merged_folder if (merged_folder / "config.json").is_file() else out
        dtype = getattr(torch, read_stored_dtype(model_folder))

    options: dict[str, Any] = {"device_map": {"": run.device}, "dtype": dtype}
    if run.config.get("load_in_4bit"):
        # On a GPU bitsandbytes dequantises weights to the dtype that they were quantised from
        # (0.49.1: matmul_4bit) or to the one it multiplies in (0.50.2: gemm_4bit). With float32 for
        # both, these are the same, and nothing is rounded to bfloat16, which moves logits by 0.02
        # to 0.03.
        options["dtype"] = torch.float32
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, **options)
    # The numbers are now rounded as they were in training. Compute with them in float32. Weights
    # that are not in bfloat16 are in float32 already, or are 4-bit codes.
    for parameter in model.parameters():
        if parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.float()
    if has_adapter:
        model = importlib.import_module("peft").PeftModel.from_pretrained(model, out)
    # Stay in training mode, in which bitsandbytes dequantises on a CPU as well: in inference mode
    # it may repack the weights there and multiply in bfloat16. Nothing is random in it, because no
    # layer has a dropout.
    model.train()
    return lambda tokens: model(tokens.to(run.device)).logits
