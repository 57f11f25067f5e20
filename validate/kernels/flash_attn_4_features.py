"""attention: what models ask of flash-attn-4 beside attention itself: soft cap (Gemma 2), a window (Mistral), head
dimension 256, and gradients that are the same bits in each run."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from validate.kernels import RULE_T, Case, Observed, SeededRandom
from validate.kernels._attention import case, rolled
from validate.kernels._flash4 import FEATURES, of_flash_attn_4, padded


def _masked(change: Callable[[Any, Any], Any], query: Any, key: Any, value: Any) -> Any:
    """Causal attention in plain torch; `change(score, distance)` alters the scores, `distance` back from each token."""
    torch = importlib.import_module("torch")
    position = torch.arange(query.shape[2], device=query.device)
    distance = position[:, None] - position[None, :]
    score = change(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, distance)
    return score.masked_fill(distance < 0, float("-inf")).softmax(-1) @ value


def _case(change: Callable[[Any, Any], Any], options: Mapping[str, Any], rng: SeededRandom) -> Case:
    # Scores of deviation 4: a cap of 5 is felt.
    inputs = {name: rng.normal(2, 3, 321, 64, deviation=size) for name, size in _DEVIATIONS.items()}
    return Case(
        dtype="bfloat16",
        inputs=inputs,
        run=partial(padded, causal=True, **options),
        plain=partial(_masked, change),
        grad_inputs=tuple(inputs),
        controls={"heads rolled": rolled},
    )


_DEVIATIONS = {"query": 2.0, "key": 2.0, "value": 1.0}
_CAP, _WINDOW = 5.0, 64


def _observe(rng: SeededRandom) -> Observed:
    """Sums of gradients over many blocks, twice. Without `deterministic` their order is the scheduler's."""
    query, key, value = (
        rng.normal(2, 4, 2048, 64).bfloat16().to(rng.device).requires_grad_(True) for _ in range(3)
    )
    twice = []
    for _ in range(2):
        output = padded(query, key, value, True, deterministic=True)
        twice.append(
            rng.torch.autograd.grad(output, [query, key, value], rng.torch.ones_like(output))
        )
    same = all(bool((first == second).all()) for first, second in zip(*twice, strict=True))
    return {"facts": {"gradients, bit for bit": "the same" if same else "different"}}


KERNEL = of_flash_attn_4(
    statement="flash-attn-4 with soft cap, window, head dimension 256, and deterministic gradients",
    cases={
        "soft cap": partial(
            _case, lambda score, _distance: _CAP * (score / _CAP).tanh(), {"softcap": _CAP}
        ),
        "window": partial(
            _case,
            lambda score, distance: score.masked_fill(distance > _WINDOW, float("-inf")),
            {"window_size": (_WINDOW, 0)},
        ),
        "dim 256 causal": case(
            "bfloat16",
            heads=(3, 3),
            lengths=(257, 257),
            dim=256,
            causal=True,
            run=padded,
            bottom_right=True,
        ),
    },
    tolerance={"bfloat16": RULE_T},
    observe=_observe,
    facts={"gradients, bit for bit": "the same"},
    supports=FEATURES,
)
