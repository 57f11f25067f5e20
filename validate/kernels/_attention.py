"""Attention in plain torch, and cases that compare an attention kernel with it."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from validate.kernels import Case, SeededRandom

_BATCH = 2


def attention(query: Any, key: Any, value: Any, *, causal: bool, bottom_right: bool) -> Any:
    """Return softmax(q k^T / sqrt(d)) v over (batch, heads, length, dim), in the inputs' dtype.

    If there are fewer key and value heads than query heads, a group of query heads shares each. The
    number of query heads must be a multiple of theirs.

    causal: no query sees a key after it.
    bottom_right: where the causal mask lies if lengths differ. False: the first query sees only the
        first key (torch, xformers). True: the last query sees all keys (flash-attn from 2.1 on); if
        there are fewer keys than queries, the first queries see none, and get NaN.
    """
    torch = importlib.import_module("torch")
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    score = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if causal:
        # Query i may see the keys up to number i + shift.
        rows, columns = score.shape[-2:]
        shift = columns - rows if bottom_right else 0
        future = torch.ones(rows, columns, dtype=torch.bool, device=score.device).triu(1 + shift)
        score = score.masked_fill(future, float("-inf"))
    return score.softmax(-1) @ value


def roll_heads(result: Any) -> Any:
    """Return a result over (batch, heads, ...) with each head in another's place: a control."""
    return result.roll(1, dims=1)


def attention_case(
    dtype: str,
    rng: SeededRandom,
    *,
    heads: tuple[int, int],
    lengths: tuple[int, int],
    dim: int,
    causal: bool,
    run: Callable[..., Any],
    bottom_right: bool = False,
) -> Case:
    """Return a case that compares an attention kernel with plain torch, on random inputs.

    It compares the output, and the gradients of query, key and value. Its control, a wrong output
    that must be noticed as such, has the heads in another order.

    dtype: torch's name of the dtype in which the kernel runs.
    rng: draws the inputs.
    heads, lengths: first those of the query, then those of key and value.
    dim: the number of dimensions of a head.
    run: the kernel, `run(query, key, value, causal)`, over (batch, heads, length, dim).
    bottom_right: where the kernel's causal mask lies; see `attention`.
    """
    query_heads, key_heads = heads
    query_length, key_length = lengths
    return Case(
        dtype=dtype,
        inputs={
            "query": rng.normal(_BATCH, query_heads, query_length, dim),
            "key": rng.normal(_BATCH, key_heads, key_length, dim),
            "value": rng.normal(_BATCH, key_heads, key_length, dim),
        },
        run=lambda query, key, value: run(query, key, value, causal),
        plain=partial(attention, causal=causal, bottom_right=bottom_right),
        grad_inputs=("query", "key", "value"),
        controls={"heads rolled": roll_heads},
    )
