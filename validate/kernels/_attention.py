"""Attention in plain torch, and the shapes that every attention kernel is held to."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from validate.kernels import Case, SeededRandom

_BATCH = 2


def attention(query: Any, key: Any, value: Any, *, causal: bool, bottom_right: bool) -> Any:
    """softmax(q k^T / sqrt(d)) v over (batch, heads, length, dim), step by step in the inputs' dtype.

    Fewer key heads than query heads are shared by groups. With unequal lengths a causal mask starts at the top left
    (torch, xformers) or ends at the bottom right (flash-attn from 2.1 on).
    """
    torch = importlib.import_module("torch")
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    score = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if causal:
        rows, columns = score.shape[-2:]
        shift = columns - rows if bottom_right else 0
        future = torch.ones(rows, columns, dtype=torch.bool, device=score.device).triu(1 + shift)
        score = score.masked_fill(future, float("-inf"))
    return score.softmax(-1) @ value


def rolled(result: Any) -> Any:
    """Each head's result where another's belongs, over (batch, heads, ...)."""
    return result.roll(1, dims=1)


def case(
    dtype: str,
    *,
    heads: tuple[int, int],
    lengths: tuple[int, int],
    dim: int,
    causal: bool,
    run: Callable[..., Any],
    bottom_right: bool = False,
) -> Callable[[SeededRandom], Case]:
    """A case over (batch, heads, length, dim): `heads` and `lengths` of the query and of key and value."""

    def make(rng: SeededRandom) -> Case:
        inputs: Mapping[str, Any] = {
            "query": rng.normal(_BATCH, heads[0], lengths[0], dim),
            "key": rng.normal(_BATCH, heads[1], lengths[1], dim),
            "value": rng.normal(_BATCH, heads[1], lengths[1], dim),
        }

        def plain(query: Any, key: Any, value: Any) -> Any:
            return attention(query, key, value, causal=causal, bottom_right=bottom_right)

        def fused(query: Any, key: Any, value: Any) -> Any:
            return run(query, key, value, causal)

        return Case(
            dtype=dtype,
            inputs=inputs,
            run=fused,
            plain=plain,
            grad_inputs=("query", "key", "value"),
            controls={"heads rolled": rolled},
        )

    return make
