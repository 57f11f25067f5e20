"""G3: flash-attn over padded batches. Dropout, ALiBi, soft cap and local windows are left out: builds may lack them."""

from __future__ import annotations

import importlib
from typing import Any

from validate.kernels._attention import case
from validate.kernels._flash import of_flash_attn


def _run(query: Any, key: Any, value: Any, causal: bool) -> Any:
    """flash-attn wants (batch, length, heads, dim)."""
    flash = importlib.import_module("flash_attn").flash_attn_func
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    return flash(query, key, value, causal=causal).transpose(1, 2)


def _of(dtype: str, heads: tuple[int, int], lengths: tuple[int, int], dim: int, causal: bool) -> Any:
    return case(dtype, heads=heads, lengths=lengths, dim=dim, causal=causal, run=_run, bottom_right=True)


KERNEL = of_flash_attn(
    statement="flash-attn for head dimensions 64, 128 and 256, causal with unequal lengths, grouped heads, backward",
    cases={
        "dim 64 causal": _of("float16", (3, 3), (257, 257), 64, True),
        "dim 128 causal unequal": _of("bfloat16", (3, 3), (113, 203), 128, True),
        "dim 256 cross": _of("float16", (3, 3), (129, 331), 256, False),
        "dim 128 grouped": _of("float16", (6, 2), (191, 191), 128, True),
        "dim 64 bfloat16": _of("bfloat16", (3, 3), (131, 131), 64, False),
    },
)
