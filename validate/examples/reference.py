"""Training a Llama in plain torch, whole or by adapters: what an example's framework is held against."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from validate.examples.trained import Adapters, Batch, Optimiser, Pairs, Trained, Weights
from validate.harness.reference import Shape, llama_logits

IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Course:
    """How training went: a loss a step, and the whole weights at the end, adapters added in."""

    losses: Sequence[float]
    weights: Weights


def train(trained: Trained, *, rate: float | None = None, frozen: str = "\0") -> Course:
    """Train as the example says it did, in float32 on the CPU.

    For controls: another `rate` (0 is an optimiser that does nothing), or parameters that stay as they are, by a part
    of their name.
    """
    torch = importlib.import_module("torch")
    start, adapters = trained.start, trained.adapters
    parameters: dict[str, Any] = {}
    for name, value in (flat(adapters.start) if adapters else start).items():
        parameters[name] = value.clone().float().requires_grad_(frozen not in name)
    optimiser = _adamw(torch, parameters, trained.optimiser, trained.optimiser.rate if rate is None else rate)
    losses = []
    for batch in trained.batches:
        loss = _objective(trained, _whole(start, parameters, adapters), batch)
        optimiser.zero_grad()
        loss.backward()
        if trained.optimiser.clip:
            moving = [parameter for parameter in parameters.values() if parameter.requires_grad]
            torch.nn.utils.clip_grad_norm_(moving, trained.optimiser.clip)
        optimiser.step()
        losses.append(float(loss.detach()))
    whole = _whole(start, parameters, adapters)
    return Course(losses=losses, weights={name: value.detach() for name, value in whole.items()})


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
    return torch.stack([_loss(weights, trained, part) for part in parts]).mean()


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
    return -torch.nn.functional.cross_entropy(logits, labels[:, 1:], ignore_index=IGNORED, reduction="none").sum(1)


def _loss(weights: Weights, trained: Trained, batch: Batch) -> Any:
    tokens, labels = batch
    logits = llama_logits(weights, trained.shape, tokens, importlib.import_module("torch").float32)
    return token_loss(logits, labels, all_labels=trained.all_labels)


def _adamw(torch: Any, parameters: Mapping[str, Any], settings: Optimiser, rate: float) -> Any:
    moving = [parameter for parameter in parameters.values() if parameter.requires_grad]
    return torch.optim.AdamW(moving, lr=rate, betas=settings.betas, eps=settings.epsilon, weight_decay=settings.decay)


def flat(pairs: Pairs) -> dict[str, Any]:
    """Both halves of every adapter, by name."""
    return {f"{module}.{half}": pair[number] for module, pair in pairs.items() for number, half in enumerate("AB")}


def _whole(start: Weights, parameters: Mapping[str, Any], adapters: Adapters | None) -> Weights:
    if adapters is None:
        return parameters
    pairs = {module: (parameters[f"{module}.A"], parameters[f"{module}.B"]) for module in adapters.start}
    return whole(start, pairs, adapters.scale)
