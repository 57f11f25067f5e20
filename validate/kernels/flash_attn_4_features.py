"""The kernels of flash-attn-4 for what some models need beside plain attention.

That is a soft cap (Gemma 2), a window (Mistral), head dimension 256, and gradients that are the
same bits in each run.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from validate.kernels import RULE_T, Case, Observed, SeededRandom
from validate.kernels._attention import attention_case, roll_heads
from validate.kernels._flash4 import FEATURES, flash_attention_4, of_flash_attn_4

_DEVIATIONS = {"query": 2.0, "key": 2.0, "value": 1.0}
"""Input -> the standard deviation of its numbers. Scores then have a deviation of 4, so that a cap
of 5 changes them."""
_CAP, _WINDOW = 5.0, 64
ScoreChange = Callable[[Any, Any], Any]
"""Given the scores, and for each how many tokens before the query its key is, returns the scores
that a feature makes of them."""


def _plain_attention(change_scores: ScoreChange, query: Any, key: Any, value: Any) -> Any:
    """Compute causal attention in plain torch, with a feature that changes the scores.

    All tensors are (batch, heads, length, dim).

    change_scores: the feature. It gets the scores, and for each score the distance: how many tokens
        its key lies before its query. It returns the scores to use instead.
    """
    torch = importlib.import_module("torch")
    position = torch.arange(query.shape[2], device=query.device)
    distance = position[:, None] - position[None, :]

    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    scores = change_scores(scores, distance)
    # Causal: no query sees a key after it.
    scores = scores.masked_fill(distance < 0, float("-inf"))
    return scores.softmax(-1) @ value


def _cap(scores: Any, _distance: Any) -> Any:
    """Return scores that approach the cap, and never exceed it."""
    return _CAP * (scores / _CAP).tanh()


def _hide_far_tokens(scores: Any, distance: Any) -> Any:
    """Return scores that are minus infinity for keys before the window."""
    return scores.masked_fill(distance > _WINDOW, float("-inf"))


def _case(change_scores: ScoreChange, options: Mapping[str, Any], rng: SeededRandom) -> Case:
    """Return a case of causal attention with a feature, over (batch, heads, length, dim).

    change_scores: the feature in plain torch. It gets the scores and the distances between queries
        and keys, and returns the scores to use instead.
    options: the arguments that ask flash-attn-4 for the feature.
    """
    inputs = {}
    for name, deviation in _DEVIATIONS.items():
        inputs[name] = rng.normal(2, 3, 321, 64, deviation=deviation)
    return Case(
        dtype="bfloat16",
        inputs=inputs,
        run=partial(flash_attention_4, causal=True, **options),
        plain=partial(_plain_attention, change_scores),
        grad_inputs=tuple(inputs),
        controls={"heads rolled": roll_heads},
    )


def _observe(rng: SeededRandom) -> Observed:
    """Compute gradients twice with `deterministic=True`, and return whether they are the same bits.

    Gradients are sums over many blocks. Without `deterministic` the GPU's scheduler decides in
    which order blocks are added, so that results are rounded differently from run to run. The
    result is one fact, with the value `the same` or `different`.
    """
    torch = rng.torch
    inputs = []
    for _ in range(3):
        tensor = rng.normal(2, 4, 2048, 64).bfloat16().to(rng.device)
        inputs.append(tensor.requires_grad_(True))

    query, key, value = inputs
    runs = []
    for _ in range(2):
        output = flash_attention_4(query, key, value, True, deterministic=True)
        runs.append(torch.autograd.grad(output, inputs, torch.ones_like(output)))

    answer = "the same"
    for first, second in zip(*runs, strict=True):
        if not bool((first == second).all()):
            answer = "different"
    return {"facts": {"gradients, bit for bit": answer}}


KERNEL = of_flash_attn_4(
    probe="gpu.flash_attn_4_features",
    statement="flash-attn-4 with soft cap, window, head dimension 256, and deterministic gradients",
    cases={
        "soft cap": partial(_case, _cap, {"softcap": _CAP}),
        "window": partial(_case, _hide_far_tokens, {"window_size": (_WINDOW, 0)}),
        "dim 256 causal": partial(
            attention_case,
            "bfloat16",
            heads=(3, 3),
            lengths=(257, 257),
            dim=256,
            causal=True,
            run=flash_attention_4,
            bottom_right=True,
        ),
    },
    tolerance={"bfloat16": RULE_T},
    observe=_observe,
    facts={"gradients, bit for bit": "the same"},
    gpu_obstacle=FEATURES,
)
