"""Attention in plain torch, and cases that compare an attention kernel with it."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from validate.kernels import Case, SeededRandom

_BATCH = 2


def attention(query: Any, key: Any, value: Any, *, causal: bool, bottom_right: bool) -> Any:
    """Return softmax(q k^T / sqrt(d)) v over (batch, heads, length, dim), in the inputs' dtype.

    If there are fewer key heads than query heads, a group of query heads shares each.

    bottom_right: where a causal mask lies if lengths differ. It starts at the top left in torch and
        xformers, and ends at the bottom right in flash-attn from 2.1 on.
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


def roll_heads(result: Any) -> Any:
    """Return a result over (batch, heads, ...) with each head in another's place: a control."""
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
    """Return a function that makes a case over (batch, heads, length, dim).

    heads, lengths: of the query, and of key and value.
    run: the kernel; gets query, key, value and `causal`.
    bottom_right: see `attention`.
    """

    def make(rng: SeededRandom) -> Case:
        """Draw the inputs, and return the case."""
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
            controls={"heads rolled": roll_heads},
        )

    return make
