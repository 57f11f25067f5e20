"""The evidence of every example's claim: the run against plain torch, what was saved, and controls. It never judges."""

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
from validate.examples.trained import IGNORED, Adapters, Batch, Pairs, Trained, Weights
from validate.harness.forked import PASSIVE_WAITING, measure_in_forks
from validate.harness.reference import Shape, llama_logits

ADAPTERS: Mapping[str, Callable[[Run], Trained | Mapping[str, object]]] = {
    "axolotl": axolotl.read_axolotl,
    "booster": programs.read_booster,
    "preferences": programs.read_preferences,
    "programs": programs.read_program,
    "rewards": programs.read_rewards,
    "unsloth": programs.read_unsloth,
}
_READ_ROWS = 4
"""Rows of the first batch: what logits are compared on."""


def measure(claims: Sequence[Claim], device: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Run each claim's example and yield its evidence, each in a fork: frameworks patch what others import.

    On a CPU with many cores they run side by side, each with its share of the cores.
    """
    cores = len(os.sched_getaffinity(0))
    count = at_once(len(claims), cores, container_memory()) if device == "cpu" else 1
    threads = max(1, cores // count) if count > 1 else 0
    runs = [partial(_example, claim.expect["example"], device, threads) for claim in claims]
    for number, evidence in measure_in_forks(runs, count):
        yield claims[number].subject, evidence


_CORES_EACH, _MEMORY_EACH = 4, 3 << 30
"""Of an example beside others: torch and a framework hold 2 GB and less."""


def at_once(examples: int, cores: int, memory: int) -> int:
    """How many examples run side by side; at least one."""
    return max(1, min(examples, cores // _CORES_EACH, memory // _MEMORY_EACH))


def _example(example: Mapping[str, Any], device: str, threads: int) -> Mapping[str, object]:
    """`threads`: of each of its processes; 0: as torch takes them."""
    os.environ.update(
        {**PASSIVE_WAITING, **os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    )
    with tempfile.TemporaryDirectory(prefix="example-") as folder:
        done = run(example, Path(folder), device)
        trained = ADAPTERS[example["adapter"]](done)
        found = {**compared(trained), **trained.facts} if isinstance(trained, Trained) else trained
        return {"seconds": round(done.seconds, 1), **found, "flash_attn_4": done.attention}


def compared(trained: Trained) -> Mapping[str, object]:
    """Everything that a claim may ask of a run, each deviation beside the control that must be told apart from it."""
    losses, weights = train(trained)
    idle, _ = train(trained, rate=0.0)
    _, frozen = train(trained, frozen=_last(trained))
    found = _found(trained, trained.saved)
    return {
        "steps": len(trained.losses),
        "losses": [round(loss, 4) for loss in trained.losses],
        "reference_losses": [round(loss, 4) for loss in losses],
        "fall": trained.losses[0] - trained.losses[-1],
        "loss_deviation": _furthest(trained.losses, losses),
        "control_idle": _furthest(trained.losses, idle),
        "update_deviation": _update(trained, found, weights),
        "control_frozen": _update(trained, found, frozen),
        **_tensors(trained),
        **_merged(trained),
        **_read_back(trained),
    }


def _tensors(trained: Trained) -> Mapping[str, object]:
    """By name: what the saved result lacks, what did not move; and how many moved."""
    # What was trained, before and after.
    before, after = trained.start, cast("Weights", trained.saved)
    if trained.adapters:
        before, after = flat(trained.adapters.start), flat(cast("Pairs", trained.saved))
    there = [name for name in before if name in after]
    still = [name for name in there if bool((after[name] == before[name]).all())]
    lacking = [name for name in before if name not in after]
    return {"lacking": lacking, "unmoved": still, "moved": len(there) - len(still)}


def _merged(trained: Trained) -> Mapping[str, object]:
    """Merged weights are the base's plus what the adapters add, and nothing else. Trained over the base itself, and not
    over its 4-bit weights, the adapters would be others."""
    if trained.merged is None:
        return {}
    base, merged = trained.merged
    wanted = _found(trained, trained.saved, base)
    there = [name for name in base if name in merged]
    unrounded, _ = train(replace(trained, start=base))
    return {
        "merged_lacking": [name for name in base if name not in merged],
        # What is neither the same nor as a 16-bit file stores it.
        "strayed": [
            name
            for name in there
            if wanted[name] is base[name]
            and all(_far(merged[name], one) for one in (base[name], base[name].bfloat16().float()))
        ],
        "merge_deviation": max(_far(merged[name], wanted[name]) for name in there),
        "control_unrounded": _furthest(trained.losses, unrounded),
        "control_unmerged": max(_far(merged[name], base[name]) for name in there),
    }


def _read_back(trained: Trained) -> Mapping[str, object]:
    """What the framework loads against the files; against what the example measured before it saved; and without one
    tensor of what was saved."""
    torch = importlib.import_module("torch")
    tokens = trained.batches[0][0][:_READ_ROWS]
    with torch.no_grad():
        logits = trained.reload(tokens).float().cpu()
        # The saved result, and as if the shard of its last layer had been left out.
        kept = {
            name: one for name, one in trained.saved.items() if not name.startswith(_last(trained))
        }
        wanted, without = (
            _logits(trained, _found(trained, saved, trained.read_over), tokens)
            for saved in (trained.saved, kept)
        )
        off = {"reload_deviation": _far(logits, wanted), "control_left_out": _far(logits, without)}
        if trained.held_out is None:
            return off
        measured, batches = trained.held_out
        again = _mean_loss(trained, batches, trained.reload)
        untrained = _mean_loss(trained, batches, lambda rows: _logits(trained, trained.start, rows))
    return {
        **off,
        "held_out_deviation": abs(again - measured),
        "control_untrained": abs(untrained - measured),
    }


def _mean_loss(trained: Trained, batches: Sequence[Batch], model: Callable[[Any], Any]) -> float:
    """Of batches of one size, by a model's logits."""
    losses = [
        token_loss(model(rows).cpu(), labels, all_labels=trained.all_labels)
        for rows, labels in batches
    ]
    return sum(map(float, losses)) / len(losses)


def _logits(trained: Trained, weights: Weights, tokens: Any) -> Any:
    return llama_logits(weights, trained.shape, tokens, importlib.import_module("torch").float32)


def _last(trained: Trained) -> str:
    return f"model.layers.{trained.shape.layers - 1}."


def _found(trained: Trained, saved: Mapping[str, Any], base: Weights | None = None) -> Weights:
    """Whole weights by what was saved; what it lacks is as at the start."""
    start = trained.start if base is None else base
    return whole(start, saved, trained.adapters.scale) if trained.adapters else {**start, **saved}


def _update(trained: Trained, found: Weights, wanted: Weights) -> float:
    """How far the weights' change is from the wanted one, relative to it, over all weights: 1 where nothing changed."""
    off = sum(float((found[name] - wanted[name]).square().sum()) for name in wanted)
    size = sum(float((wanted[name] - trained.start[name]).square().sum()) for name in wanted)
    return (off / size) ** 0.5 if size else math.inf


def _far(found: Any, wanted: Any) -> float:
    return float((found - wanted).abs().max())


def _furthest(found: Sequence[float], wanted: Sequence[float]) -> float:
    """The largest difference of two series; infinite where they are of different lengths."""
    if len(found) != len(wanted):
        return math.inf
    return max(abs(one - other) for one, other in zip(found, wanted, strict=True))


def train(
    trained: Trained, *, rate: float | None = None, frozen: str = "\0"
) -> tuple[Sequence[float], Weights]:
    """Train as the example says it did, in float32 on the CPU: a loss a step, and the whole weights at the end.

    For controls: another `rate` (0 is an optimiser that does nothing), or parameters that stay as they are, by a part
    of their name.
    """
    torch = importlib.import_module("torch")
    start, adapters = trained.start, trained.adapters
    parameters: dict[str, Any] = {}
    for name, value in (flat(adapters.start) if adapters else start).items():
        parameters[name] = value.clone().float().requires_grad_(frozen not in name)
    moving = [parameter for parameter in parameters.values() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(
        moving, lr=trained.rate if rate is None else rate, weight_decay=0.0
    )
    losses = []
    for batch in trained.batches:
        loss = _objective(trained, _whole(start, parameters, adapters), batch)
        optimiser.zero_grad()
        loss.backward()
        if trained.clip:
            torch.nn.utils.clip_grad_norm_(moving, trained.clip)
        optimiser.step()
        losses.append(float(loss.detach()))
    whole = _whole(start, parameters, adapters)
    return losses, {name: value.detach() for name, value in whole.items()}


def whole(start: Weights, pairs: Pairs, scale: float) -> dict[str, Any]:
    """The weights with the adapters added in. A module without a weight is left out."""
    found = dict(start)
    for module, (a, b) in pairs.items():
        name = f"{module}.weight"
        if name in found:
            found[name] = found[name] + scale * (b.float() @ a.float())
    return found


def token_loss(logits: Any, labels: Any, *, all_labels: bool = False) -> Any:
    """Mean cross entropy of the next token, over those that have a label (Trained.all_labels: over all labels)."""
    torch = importlib.import_module("torch")
    ahead, wanted = logits[:, :-1].reshape(-1, logits.shape[-1]).float(), labels[:, 1:].reshape(-1)
    total = torch.nn.functional.cross_entropy(ahead, wanted, ignore_index=IGNORED, reduction="sum")
    return total / ((labels if all_labels else wanted) != IGNORED).sum()


def _objective(trained: Trained, weights: Weights, batch: Batch) -> Any:
    """What the example minimises."""
    torch = importlib.import_module("torch")
    if trained.preference is not None:
        return _preference(trained, weights, batch)
    tokens, labels = batch
    parts = zip(tokens.chunk(trained.parts), labels.chunk(trained.parts), strict=True)
    losses = [
        token_loss(_logits(trained, weights, one), wanted, all_labels=trained.all_labels)
        for one, wanted in parts
    ]
    return torch.stack(losses).mean()


def _preference(trained: Trained, weights: Weights, batch: Batch) -> Any:
    """DPO: how much more likely the first half has become than the second, against the start."""
    torch = importlib.import_module("torch")
    with torch.no_grad():
        before = _log_likelihood(trained.start, trained.shape, batch)
    chosen, rejected = (_log_likelihood(weights, trained.shape, batch) - before).chunk(2)
    return -torch.nn.functional.logsigmoid(trained.preference * (chosen - rejected)).mean()


def _log_likelihood(weights: Weights, shape: Shape, batch: Batch) -> Any:
    """Of each row's labels, in all."""
    torch = importlib.import_module("torch")
    tokens, labels = batch
    logits = llama_logits(weights, shape, tokens, torch.float32)[:, :-1].transpose(1, 2).float()
    return -torch.nn.functional.cross_entropy(
        logits, labels[:, 1:], ignore_index=IGNORED, reduction="none"
    ).sum(1)


def flat(pairs: Pairs) -> dict[str, Any]:
    """Both halves of every adapter, by name."""
    return {
        f"{module}.{half}": pair[number]
        for module, pair in pairs.items()
        for number, half in enumerate("AB")
    }


def _whole(start: Weights, parameters: Mapping[str, Any], adapters: Adapters | None) -> Weights:
    if adapters is None:
        return parameters
    pairs = {
        module: (parameters[f"{module}.A"], parameters[f"{module}.B"]) for module in adapters.start
    }
    return whole(start, pairs, adapters.scale)
