"""Run examples and compare what they trained with the same training in plain torch.

Every deviation is measured beside a control: the deviation of something that is known to be wrong,
which the claim must tell apart. Nothing is judged here.
"""

import importlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from validate.claims import Claim
from validate.environment import container_memory
from validate.examples import axolotl, programs
from validate.examples.run import Run, run
from validate.examples.trained import (
    IGNORED,
    AdapterPairs,
    Adapters,
    Batch,
    TrainingResult,
    Weights,
)
from validate.harness.forked import PASSIVE_WAITING, measure_in_forks
from validate.harness.reference import Shape, llama_logits

ADAPTERS: Mapping[str, Callable[[Run], TrainingResult | Mapping[str, object]]] = {
    "axolotl": axolotl.read_axolotl,
    "booster": programs.read_booster,
    "preferences": programs.read_preferences,
    "programs": programs.read_program,
    "rewards": programs.read_rewards,
    "unsloth": programs.read_unsloth,
}
"""Name, as examples give it -> the function that reads the files which a run left.

It returns a TrainingResult, which is then compared with plain torch, or evidence that is complete.
"""
_COMPARED_ROWS = 4
"""Logits are compared on this many rows of the first batch."""
_CORES_EACH = 4
_BYTES_EACH = 3 << 30
"""The cores and the memory for an example that runs beside others. (torch and a framework take 2 GB
or less.)"""


def measure(claims: Sequence[Claim], device: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Run the example program of each claim, and yield the claim's subject and what was measured.

    Results are yielded as they come, so their order is not that of the claims. If an example fails,
    its error is yielded.

    device: `cpu` or `cuda`.
    """
    # Examples on a GPU run one after the other. `threads` is the number of threads of an example's
    # processes; None: torch chooses it.
    at_once = 1
    threads = None
    if device == "cpu":
        # On a CPU with many cores, several run side by side and share the cores.
        cores = len(os.sched_getaffinity(0))
        at_once = count_examples_at_once(len(claims), cores, container_memory())
        if at_once > 1:
            threads = max(1, cores // at_once)

    # Each example has a fork of its own, because frameworks patch the modules that others import.
    measures = []
    for claim in claims:
        measures.append(partial(measure_example, claim.expect["example"], device, threads))
    # Measures and claims have the same order, so `number` is also the position of the claim.
    for number, evidence in measure_in_forks(measures, at_once):
        yield claims[number].subject, evidence


def count_examples_at_once(examples: int, cores: int, memory: int) -> int:
    """Return how many examples may run side by side, at least one. `memory` is in bytes."""
    return max(1, min(examples, cores // _CORES_EACH, memory // _BYTES_EACH))


def measure_example(
    example: Mapping[str, Any], device: str, threads: int | None
) -> Mapping[str, object]:
    """Run an example, compare what it trained with plain torch, and return the evidence.

    `example` is what its claim expects: the commands to run, and which of ADAPTERS reads the files
    that they leave. `threads` is the number of threads of each of its processes; None leaves it to
    torch. The evidence also has the example's seconds, and how many kernels flash-attn-4 compiled
    ("flash_attn_4"). Raises KeyError for an unknown adapter.
    """
    # With these variables, threads that wait do not take the cores of others.
    for name, value in PASSIVE_WAITING.items():
        os.environ.setdefault(name, value)
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)

    with tempfile.TemporaryDirectory(prefix="example-") as folder:
        finished_run = run(example, Path(folder), device)
        # Each framework's files are read by a function of its own, before the folder is removed.
        read_run = ADAPTERS[example["adapter"]]
        result = read_run(finished_run)
        if isinstance(result, TrainingResult):
            evidence = {**compare_with_plain_torch(result), **result.facts}
        else:
            # This training can't be repeated in plain torch, because the example draws its data
            # itself. So the function has returned the evidence.
            evidence = dict(result)
        seconds = round(finished_run.seconds, 1)
        return {"seconds": seconds, **evidence, "flash_attn_4": finished_run.flash_attn_4_kernels}


def compare_with_plain_torch(result: TrainingResult) -> Mapping[str, object]:
    """Repeat a training in plain torch and return how far the example's losses and weights are off.

    - "loss_deviation": the largest difference of a step's losses.
    - "control_idle": the same, if plain torch's optimiser does nothing.
    - "update_deviation": how far the change of all weights is from plain torch's change, as a share
      of the latter (see `update_deviation`).
    - "control_frozen": the same, if plain torch does not train the last layer.

    The controls are wrong on purpose: a judge must be able to tell the deviations from them.
    """
    last_layer = prefix_of_last_layer(result.shape)
    losses, weights = train_in_plain_torch(result)
    idle_losses, _ = train_in_plain_torch(result, learning_rate=0.0)
    _, frozen_weights = train_in_plain_torch(result, frozen_part=last_layer)
    # Compare all weights of the model: if adapters were trained, with the adapters added.
    saved_weights = apply_saved(result, result.saved, result.start)
    return {
        "steps": len(result.losses),
        "losses": [round(loss, 4) for loss in result.losses],
        "reference_losses": [round(loss, 4) for loss in losses],
        "fall": result.losses[0] - result.losses[-1],
        "loss_deviation": largest_loss_difference(result.losses, losses),
        "control_idle": largest_loss_difference(result.losses, idle_losses),
        "update_deviation": update_deviation(result.start, saved_weights, weights),
        "control_frozen": update_deviation(result.start, saved_weights, frozen_weights),
        **list_unmoved_tensors(result),
        **compare_merged_weights(result),
        **compare_reloaded_model(result),
    }


def list_unmoved_tensors(result: TrainingResult) -> Mapping[str, object]:
    """Return which tensors did not move in training, how many did, and which are not saved.

    "unmoved" and "lacking" are names, "moved" is a number. If adapters were trained, the tensors
    are their matrices A and B: `model.layers.0.mlp.up_proj.A`.
    """
    if result.adapters:
        before = flatten_pairs(result.adapters.start)
        after = flatten_pairs(cast("AdapterPairs", result.saved))
    else:
        before = dict(result.start)
        after = dict(result.saved)

    missing, unmoved, moved = [], [], []
    for name, tensor in before.items():
        if name not in after:
            missing.append(name)
        elif bool((after[name] == tensor).all()):
            unmoved.append(name)
        else:
            moved.append(name)
    return {"lacking": missing, "unmoved": unmoved, "moved": len(moved)}


def compare_merged_weights(result: TrainingResult) -> Mapping[str, object]:
    """Compare weights into which adapters were merged with a merge of our own; {}: there are none.

    A merge adds what LoRA adapters learned to the weights of a base model. The result has:

    - "merged_lacking": the names of weights that the merged model lacks.
    - "strayed": the names of weights that the merge changed although they have no adapter.
    - "merge_deviation": the largest difference between a merged weight and base plus adapter.
    - "control_unmerged": the largest difference between a merged weight and the base alone. A judge
      must find it too large, or the comparison before it proves nothing.
    - "control_unrounded": the largest difference of the example's losses from those of a training
      over the merge's base. A QLoRA training uses the same base, but rounded to 4 bits.

    Raises ValueError if the merged model has none of the base's weights.
    """
    if result.merge is None:
        return {}

    base, merged = result.merge
    # The merge as we compute it: the base, with the saved adapters added.
    expected = apply_saved(result, result.saved, base)
    unrounded_losses, _ = train_in_plain_torch(replace(result, start=base))
    missing, strayed = [], []
    deviations, control_deviations = [], []
    for name, base_weight in base.items():
        if name not in merged:
            missing.append(name)
            continue
        deviations.append(largest_difference(merged[name], expected[name]))
        control_deviations.append(largest_difference(merged[name], base_weight))
        # `apply_saved` returns the same tensor for a weight without an adapter. A merge may only
        # round such a weight to bfloat16.
        has_adapter = expected[name] is not base_weight
        if not has_adapter and not is_same_or_rounded(merged[name], base_weight):
            strayed.append(name)
    return {
        "merged_lacking": missing,
        "strayed": strayed,
        "merge_deviation": max(deviations),
        "control_unrounded": largest_loss_difference(result.losses, unrounded_losses),
        "control_unmerged": max(control_deviations),
    }


def is_same_or_rounded(tensor: Any, original: Any) -> bool:
    """Return whether a tensor has the numbers of another, or these rounded to bfloat16."""
    rounded = original.bfloat16().float()
    is_same = largest_difference(tensor, original) == 0
    return is_same or largest_difference(tensor, rounded) == 0


def compare_reloaded_model(result: TrainingResult) -> Mapping[str, object]:
    """Compare a saved model, loaded again by its framework, with what our own code reads of it.

    Both compute the logits of the same tokens. The result has:

    - "reload_deviation": the largest difference between these logits.
    - "control_left_out": the same if our code leaves out the last layer, as if a file were missing.
      A judge must find it too large.

    Some examples measured a loss on held-out rows before they ended. Then the result also has:

    - "held_out_deviation": how far the reloaded model's loss on these rows is from that loss.
    - "control_untrained": how far the untrained model's loss is from it.
    """
    torch = importlib.import_module("torch")
    tokens, _ = result.batches[0]
    tokens = tokens[:_COMPARED_ROWS]
    last_layer = prefix_of_last_layer(result.shape)
    without_last_layer = {}
    for name, tensor in result.saved.items():
        if not name.startswith(last_layer):
            without_last_layer[name] = tensor

    # Files of adapters hold only these. The model's own weights, to which they are added, may be
    # rounded otherwise after loading than in training.
    base = result.start if result.reload_base is None else result.reload_base
    with torch.no_grad():
        logits = result.compute_logits(tokens).float().cpu()
        complete = apply_saved(result, result.saved, base)
        complete_logits = compute_reference_logits(result.shape, complete, tokens)
        incomplete = apply_saved(result, without_last_layer, base)
        incomplete_logits = compute_reference_logits(result.shape, incomplete, tokens)
        evidence = {
            "reload_deviation": largest_difference(logits, complete_logits),
            "control_left_out": largest_difference(logits, incomplete_logits),
        }
        if result.held_out is not None:
            untrained_model = partial(compute_reference_logits, result.shape, result.start)
            measured_loss, batches = result.held_out
            reloaded_loss = mean_token_loss(result, batches, result.compute_logits)
            untrained_loss = mean_token_loss(result, batches, untrained_model)
            evidence["held_out_deviation"] = abs(reloaded_loss - measured_loss)
            evidence["control_untrained"] = abs(untrained_loss - measured_loss)
    return evidence


def mean_token_loss(
    result: TrainingResult, batches: Sequence[Batch], compute_logits: Callable[[Any], Any]
) -> float:
    """Return the mean loss of a model on batches of one size."""
    losses = []
    for tokens, labels in batches:
        logits = compute_logits(tokens).cpu()
        losses.append(float(token_loss(logits, labels, counts_all_labels=result.counts_all_labels)))
    return sum(losses) / len(losses)


def compute_reference_logits(shape: Shape, weights: Weights, tokens: Any) -> Any:
    """Return the logits of a Llama with these weights, in float32 by our own plain torch code."""
    return llama_logits(weights, shape, tokens, importlib.import_module("torch").float32)


def prefix_of_last_layer(shape: Shape) -> str:
    """Return the beginning of the names of the last layer's tensors: `model.layers.1.`"""
    return f"model.layers.{shape.layers - 1}."


def apply_saved(result: TrainingResult, saved: Mapping[str, Any], base: Weights) -> Weights:
    """Return all weights that a saved result stands for.

    `saved` are adapters, which are added to the weights of `base`, or weights, which replace them.
    Where it lacks some, the weights are those of the base.
    """
    if result.adapters:
        return add_adapters(base, saved, result.adapters.scale)
    return {**base, **saved}


def update_deviation(start: Weights, weights: Weights, expected: Weights) -> float:
    """Return |weights - expected| / |expected - start|, in 2-norms over all weights together.

    `start` are the weights before a training, `weights` and `expected` those after it, all by name.
    The result is 0 for the expected change and 1 for no change at all; infinite if no change is
    expected. Raises KeyError if one of the expected weights is missing.
    """
    squared_difference = 0.0
    squared_change = 0.0
    for name, expected_weight in expected.items():
        squared_difference += float((weights[name] - expected_weight).square().sum())
        squared_change += float((expected_weight - start[name]).square().sum())
    if not squared_change:
        return math.inf
    return float((squared_difference / squared_change) ** 0.5)


def largest_difference(tensor: Any, other: Any) -> float:
    """Return the largest absolute difference of two tensors of one shape."""
    return float((tensor - other).abs().max())


def largest_loss_difference(losses: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest difference of two series of losses; infinite if their lengths differ."""
    if len(losses) != len(expected):
        return math.inf
    return max(abs(loss - other) for loss, other in zip(losses, expected, strict=True))


def train_in_plain_torch(
    result: TrainingResult, *, learning_rate: float | None = None, frozen_part: str | None = None
) -> tuple[list[float], Weights]:
    """Repeat an example's training in float32 on the CPU; return each step's loss and all weights.

    The optimiser is torch's AdamW without weight decay, as in the examples.

    By default this is the example's own training. For controls, which are wrong on purpose, it can
    be changed in two ways: `learning_rate` replaces the example's (0: the optimiser does nothing),
    and parameters whose names contain `frozen_part` are not trained.
    """
    torch = importlib.import_module("torch")
    if learning_rate is None:
        learning_rate = result.learning_rate
    # If there are adapters, only their A and B are trained.
    start: Mapping[str, Any] = result.start
    if result.adapters:
        start = flatten_pairs(result.adapters.start)

    parameters: dict[str, Any] = {}
    for name, value in start.items():
        is_frozen = frozen_part is not None and frozen_part in name
        parameters[name] = value.clone().float().requires_grad_(not is_frozen)
    trainable = [parameter for parameter in parameters.values() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trainable, lr=learning_rate, weight_decay=0.0)

    losses = []
    for batch in result.batches:
        weights = apply_parameters(result.start, parameters, result.adapters)
        loss = compute_objective(result, weights, batch)
        optimiser.zero_grad()
        loss.backward()
        if result.largest_gradient_norm:
            torch.nn.utils.clip_grad_norm_(trainable, result.largest_gradient_norm)
        optimiser.step()
        losses.append(float(loss.detach()))

    weights = apply_parameters(result.start, parameters, result.adapters)
    return losses, {name: value.detach() for name, value in weights.items()}


def apply_parameters(
    base: Weights, parameters: Mapping[str, Any], adapters: Adapters | None
) -> Weights:
    """Return all weights of a model in training, so that gradients reach its parameters.

    Without adapters the parameters are the weights. With adapters they are the LoRA matrices A and
    B of each module, named `MODULE.A` and `MODULE.B`, and scale * B A is added to the base.
    """
    if adapters is None:
        return parameters
    pairs = {}
    for module in adapters.start:
        pairs[module] = (parameters[f"{module}.A"], parameters[f"{module}.B"])
    return add_adapters(base, pairs, adapters.scale)


def flatten_pairs(pairs: AdapterPairs) -> dict[str, Any]:
    """Return A and B of every module by name: `MODULE.A` and `MODULE.B`."""
    matrices = {}
    for module, (a, b) in pairs.items():
        matrices[f"{module}.A"] = a
        matrices[f"{module}.B"] = b
    return matrices


def add_adapters(base: Weights, pairs: AdapterPairs, scale: float) -> dict[str, Any]:
    """Return the weights with every adapter added in: W + scale * B A.

    An adapter of a module that has no weight in `base` is left out.
    """
    weights = dict(base)
    for module, (lora_a, lora_b) in pairs.items():
        name = f"{module}.weight"
        if name in weights:
            product = lora_b.float() @ lora_a.float()
            weights[name] = weights[name] + scale * product
    return weights


def token_loss(logits: Any, labels: Any, *, counts_all_labels: bool = False) -> Any:
    """Return the mean cross entropy of predicting each next token that has a label.

    `logits` is [rows, length, vocabulary], `labels` [rows, length]. The mean is over the predicted
    labels, or over all labels (`counts_all_labels`): those of the first tokens, too, which nothing
    predicts. A label is IGNORED where there is no loss.
    """
    torch = importlib.import_module("torch")
    # The logits at a token predict the next one.
    predictions = logits[:, :-1].reshape(-1, logits.shape[-1]).float()
    next_labels = labels[:, 1:].reshape(-1)
    total = torch.nn.functional.cross_entropy(
        predictions, next_labels, ignore_index=IGNORED, reduction="sum"
    )
    counted_labels = labels if counts_all_labels else next_labels
    return total / (counted_labels != IGNORED).sum()


def compute_objective(result: TrainingResult, weights: Weights, batch: Batch) -> Any:
    """Return the loss of one training step, computed in plain torch as the framework defines it.

    `weights` are those before the step; `batch` has the tokens and labels of all ranks, which are
    processes that train together. The loss is the mean of the ranks' losses, or DPO's loss if the
    example trained by DPO.
    """
    torch = importlib.import_module("torch")
    if result.dpo_beta is not None:
        return compute_dpo_loss(result, weights, batch, result.dpo_beta)

    # This is not the loss of the whole batch: each rank divides by the number of its own labels.
    tokens, labels = batch
    tokens_by_rank = tokens.chunk(result.rank_count)
    labels_by_rank = labels.chunk(result.rank_count)
    losses = []
    for rank_tokens, rank_labels in zip(tokens_by_rank, labels_by_rank, strict=True):
        logits = compute_reference_logits(result.shape, weights, rank_tokens)
        losses.append(token_loss(logits, rank_labels, counts_all_labels=result.counts_all_labels))
    return torch.stack(losses).mean()


def compute_dpo_loss(result: TrainingResult, weights: Weights, batch: Batch, beta: float) -> Any:
    """Return DPO's loss: -log sigmoid(beta * (gain of the chosen answer - gain of the rejected)).

    The gain of an answer is how much its log-likelihood has grown since the start of training. The
    chosen answers are the first half of the batch's rows, the rejected ones the second half.
    """
    torch = importlib.import_module("torch")
    with torch.no_grad():
        start_likelihoods = compute_log_likelihoods(result.start, result.shape, batch)
    likelihoods = compute_log_likelihoods(weights, result.shape, batch)
    chosen_gains, rejected_gains = (likelihoods - start_likelihoods).chunk(2)
    return -torch.nn.functional.logsigmoid(beta * (chosen_gains - rejected_gains)).mean()


def compute_log_likelihoods(weights: Weights, shape: Shape, batch: Batch) -> Any:
    """Return the log-likelihood of each row's labels, summed over the row: a tensor [rows]."""
    torch = importlib.import_module("torch")
    tokens, labels = batch
    predictions = compute_reference_logits(shape, weights, tokens)[:, :-1].transpose(1, 2).float()
    losses = torch.nn.functional.cross_entropy(
        predictions, labels[:, 1:], ignore_index=IGNORED, reduction="none"
    )
    return -losses.sum(1)
