"""Read what the programs in examples/ left: their configuration, rows, result.json and weights."""

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
    AdapterPair,
    Adapters,
    Batch,
    HeldOut,
    Merge,
    TrainingResult,
    Weights,
    pad_batches,
    pair_adapter_tensors,
    read_preference_rows,
    read_shape,
    read_tensors,
    round_to_double_quantised_nf4,
    round_to_nf4,
    shuffle_row_numbers,
    stack_batches,
)

_EVALUATION_BATCH = 8
"""Rows of a batch when the Trainer evaluates. The number of held-out rows is a multiple, so that
the mean over rows is the mean over batches."""


def read_program(run: Run) -> TrainingResult:
    """Return what a program with transformers' Trainer trained.

    With `lora` in its configuration that is adapters over 4-bit weights, otherwise all weights.
    """
    if "lora" in run.config:
        return read_qlora(run)
    return describe_full_training(run, load_saved_model(run))


def read_qlora(run: Run) -> TrainingResult:
    """Return the result of a program that trained LoRA adapters over 4-bit weights (QLoRA).

    `run` is the program that has run to its end. The result is everything that is compared with the
    same training in plain torch: the weights and adapters before, the losses and batches, and the
    adapters after.
    """
    # bitsandbytes rounds the weights below the adapters to NF4, so round them here, too.
    start = round_to_nf4(read_tensors(run.model), read_shape(run.model))
    adapters = draw_adapters(run, run.config["lora"])

    # Load the saved adapters by peft, over weights quantised as in training. Our own code loads
    # them, too (`saved`), and evidence.compare_reloaded_model compares the logits of both.
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    peft = importlib.import_module("peft")
    quantisation = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(
        run.model,
        quantization_config=quantisation,
        device_map={"": run.device},
        torch_dtype="auto",
    )
    model = peft.PeftModel.from_pretrained(base, run.folder / run.result()["saved"])
    # In training mode bitsandbytes dequantises on a CPU, too. In inference it may repack the
    # weights and multiply in bfloat16.
    model.train()
    return describe_adapter_training(run, start, adapters, make_logits_function(model, run.device))


def read_preferences(run: Run) -> TrainingResult:
    """Return the result of a program that trained LoRA adapters by DPO (preference optimisation).

    That is everything that is compared with the same training in plain torch: the losses that the
    program logged, the batches that it trained on, the weights before, and the adapters after.
    """
    # Make the batches again, from the program's data and seed. Each row has two parts, a chosen and
    # a rejected answer; the Trainer shuffles the rows.
    settings: Mapping[str, Any] = run.config["training"]
    rows = read_preference_rows(run.model, run.folder / run.config["data"])
    order = shuffle_row_numbers(len(rows), int(settings["seed"]))
    batch_size = int(settings["per_device_train_batch_size"])
    saved = run.folder / run.result()["saved"]

    # Load the saved adapters by peft. Our own code loads them, too (`saved`), and
    # evidence.compare_reloaded_model compares the logits of both.
    transformers = importlib.import_module("transformers")
    peft = importlib.import_module("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(run.model).to(run.device)
    model = peft.PeftModel.from_pretrained(base, saved).eval()
    return TrainingResult(
        losses=[float(loss) for loss in run.result()["losses"]],
        shape=read_shape(run.model),
        start=read_tensors(run.model),
        batches=pad_batches(rows, order, batch_size, int(settings["max_steps"])),
        dpo_beta=float(run.config["beta"]),
        learning_rate=float(settings["learning_rate"]),
        adapters=draw_adapters(run, run.config["lora"]),
        saved=pair_adapter_tensors(read_tensors(saved)),
        compute_logits=make_logits_function(model, run.device),
    )


def read_rewards(run: Run) -> Mapping[str, object]:
    """Return the evidence of a program that trains by rewards for answers that it draws itself.

    Plain torch would draw other answers, so nothing is compared. "first" and "last" are the mean
    rewards of the first and the last three steps, and "rise" is their difference. Everything in the
    program's result.json is added.
    """
    result = run.result()
    rewards = result["rewards"]
    first_rewards, last_rewards = rewards[:3], rewards[-3:]
    first = sum(first_rewards) / len(first_rewards)
    last = sum(last_rewards) / len(last_rewards)
    return {
        "first": first,
        "last": last,
        "rise": last - first,
        "steps": len(rewards),
        **result,
    }


def read_booster(run: Run) -> TrainingResult:
    """Return what a program with ColossalAI's Booster trained, to compare it with plain torch.

    The Booster saves the weights in several files: the fact "shards" is their number.
    """
    settings = run.config["training"]
    batch_size = int(settings["per_device_train_batch_size"])
    steps = int(settings["max_steps"])

    # The Booster takes the rows in the order of the file.
    rows = read_rows(run)
    batches = stack_batches(rows, range(len(rows)), batch_size, steps)

    saved_folder = run.folder / run.result()["saved"]
    shards = list(saved_folder.glob("*.safetensors"))
    return replace(
        describe_full_training(run, load_saved_model(run)),
        batches=batches,
        largest_gradient_norm=0.0,  # it does not clip gradients
        counts_all_labels=False,
        facts={"shards": len(shards)},
    )


# The modules that examples/unsloth/sft.py adds adapters to.
_UNSLOTH_TARGETS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)


def read_unsloth(run: Run) -> TrainingResult:
    """Return what a program with unsloth trained: LoRA adapters over 4-bit weights.

    The program's run has ended; its files are read and loaded here. Changes this process: its
    working directory, its environment, and whatever unsloth patches.
    """
    # Without this variable unsloth's models return no logits, to save memory.
    os.environ["UNSLOTH_RETURN_LOGITS"] = "1"
    # The adapter names its model by a path relative to the folder of the training, and unsloth
    # writes its cache to the working directory.
    os.chdir(run.folder)
    # unsloth patches transformers and peft, so it must be imported before them.
    fast_language_model = importlib.import_module("unsloth").FastLanguageModel
    torch = importlib.import_module("torch")

    # unsloth stores weights in bfloat16 and quantises these.
    weights = {}
    for name, tensor in read_tensors(run.model).items():
        weights[name] = tensor.to(torch.bfloat16).float()
    start = round_to_double_quantised_nf4(
        weights, read_shape(run.model), run.device, torch.bfloat16
    )

    # Draw the adapters as the program did. unsloth seeds the generator itself before it draws A.
    lora = run.config["lora"]
    seed = int(run.config["training"]["seed"])
    length = run.config["length"]
    model, _ = fast_language_model.from_pretrained(
        str(run.model), max_seq_length=length, load_in_4bit=True
    )
    tuned = fast_language_model.get_peft_model(
        model, target_modules=list(_UNSLOTH_TARGETS), random_state=seed, **lora
    )
    adapters = Adapters(scale=lora["lora_alpha"] / lora["r"], start=copy_adapters(tuned))

    # Load the saved files by unsloth. Our own code loads them, too (`saved`), and
    # evidence.compare_reloaded_model compares the logits of both.
    saved = str(run.folder / run.result()["saved"])
    saved_model, _ = fast_language_model.from_pretrained(
        saved, max_seq_length=length, load_in_4bit=True
    )
    fast_language_model.for_inference(saved_model)

    def compute_logits(tokens: Any) -> Any:
        return saved_model(input_ids=tokens.to(run.device)).logits

    result = describe_adapter_training(run, start, adapters, compute_logits)
    # unsloth divides a loss by the number of labels that are predicted, unlike some Trainers.
    return replace(result, counts_all_labels=False)


def describe_full_training(run: Run, compute_logits: Callable[[Any], Any]) -> TrainingResult:
    """Return what transformers' Trainer trained, for a program that trained all weights.

    `compute_logits` gives the logits of tokens by the saved result. If the program trained adapters
    instead, `describe_adapter_training` calls this and replaces what differs, such as `saved`.
    """
    settings: Mapping[str, Any] = run.config["training"]
    result = run.result()

    # The last rows are held out, and the others are shuffled.
    rows = read_rows(run)
    trained_count = len(rows) - int(run.config["held_out"])
    order = shuffle_row_numbers(trained_count, int(settings["seed"]))
    # The Trainer evaluates all held-out rows, without shuffling.
    held_out_rows = rows[trained_count:]
    held_out_batches = stack_batches(
        held_out_rows,
        range(len(held_out_rows)),
        _EVALUATION_BATCH,
        len(held_out_rows) // _EVALUATION_BATCH,
    )

    # A step takes the batches of all ranks together.
    rank_count = int(result.get("ranks", 1))
    batch_size = rank_count * int(settings["per_device_train_batch_size"])
    return TrainingResult(
        losses=[float(loss) for loss in result["losses"]],
        shape=read_shape(run.model),
        start=read_tensors(run.model),
        batches=stack_batches(rows, order, batch_size, int(settings["max_steps"])),
        learning_rate=float(settings["learning_rate"]),
        counts_all_labels=does_trainer_count_all_labels(),
        saved={} if "lora" in run.config else read_tensors(run.folder / result["saved"]),
        compute_logits=compute_logits,
        held_out=HeldOut(float(result["held_out"]), held_out_batches),
        facts={
            "ranks": rank_count,
            "compiled": run.inductor_modules,
            "said": str(result.get("said", "")),  # what the trained model answered to a question
        },
    )


def describe_adapter_training(
    run: Run, start: Weights, adapters: Adapters, compute_logits: Callable[[Any], Any]
) -> TrainingResult:
    """Return what the Trainer trained if it trained adapters over the frozen weights `start`.

    The program merged the adapters into the model's own weights, which are not quantised. The
    `adapters` are those before training; `compute_logits` gives the logits of tokens by the saved
    result.
    """
    training = describe_full_training(run, compute_logits)
    result = run.result()
    merged = read_tensors(run.folder / result["merged"])
    saved = pair_adapter_tensors(read_tensors(run.folder / result["saved"]))
    return replace(
        training,
        start=start,
        adapters=adapters,
        saved=saved,
        merge=Merge(base=training.start, merged=merged),
    )


def does_trainer_count_all_labels() -> bool:
    """Return whether the installed Trainer divides a loss by the number of all labels.

    It did so, the first label of a row included, which nothing predicts, until it counted
    `labels[..., 1:]`. The method that counts has another name in newer releases.
    """
    trainer = importlib.import_module("transformers").Trainer
    counting_method = getattr(trainer, "_get_num_items_in_batch", trainer.get_batch_samples)
    return "[..., 1:]" not in inspect.getsource(counting_method)


def read_rows(run: Run) -> list[Batch]:
    """Return tokens and labels of every line of a program's data, as the programs make them.

    A line is JSON with an instruction, an input and an output. Together they are the text, padded
    or cut to one length. Each token is its own label; padding has none (IGNORED).
    """
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.model)
    rows = []
    for line in (run.folder / run.config["data"]).read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        question = " ".join(part for part in (fields["instruction"], fields["input"]) if part)
        text = question + "\n" + fields["output"] + tokenizer.eos_token
        token_ids = tokenizer(
            text, truncation=True, padding="max_length", max_length=run.config["length"]
        )["input_ids"]
        tokens = torch.tensor(token_ids)
        labels = tokens.masked_fill(tokens == tokenizer.pad_token_id, IGNORED)
        rows.append((tokens, labels))
    return rows


def draw_adapters(run: Run, lora: Mapping[str, Any]) -> Adapters:
    """Return the LoRA adapters with which a program's training began, by drawing them again.

    peft draws the matrix A at random. The program sets its seed just before, so the same seed gives
    the same numbers here. B is zero. `lora` holds the arguments of peft's LoraConfig.
    """
    transformers = importlib.import_module("transformers")
    peft = importlib.import_module("peft")
    model = transformers.AutoModelForCausalLM.from_pretrained(run.model)
    transformers.set_seed(int(run.config["training"]["seed"]))
    settings = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **lora)
    tuned = peft.get_peft_model(model, settings)
    return Adapters(scale=lora["lora_alpha"] / lora["r"], start=copy_adapters(tuned))


def copy_adapters(tuned: Any) -> dict[str, AdapterPair]:
    """Return copies, in float32 on the CPU, of A and B of each module of a peft model."""
    tensors = {}
    for name, parameter in tuned.named_parameters():
        if ".lora_" in name:
            tensors[name] = parameter.detach().float().cpu().clone()
    return pair_adapter_tensors(tensors)


def load_saved_model(run: Run) -> Callable[[Any], Any]:
    """Load the model that a program saved; return a function from tokens to its logits."""
    auto_model = importlib.import_module("transformers").AutoModelForCausalLM
    saved_folder = run.folder / run.result()["saved"]
    model = auto_model.from_pretrained(saved_folder).to(run.device).eval()
    return make_logits_function(model, run.device)


def make_logits_function(model: Any, device: str) -> Callable[[Any], Any]:
    """Return a function that gives the model's logits of tokens, which it moves to the device."""
    return lambda tokens: model(tokens.to(device)).logits
