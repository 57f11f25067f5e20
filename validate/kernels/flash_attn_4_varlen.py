"""The kernels of flash-attn-4 over sequences that are packed one after another."""

import importlib
from functools import partial
from typing import Any

from validate.kernels._flash import packed_case
from validate.kernels._flash4 import of_flash_attn_4


def _varlen(query: Any, key: Any, value: Any, starts: Any, longest: int, *, causal: bool) -> Any:
    """Return attention of sequences that are packed one after another, by flash-attn-4.

    Query, key and value are (tokens, heads, dim). `starts` says where each sequence begins, and
    where the last one ends; `longest` is the length of the longest.
    """
    flash = importlib.import_module("flash_attn.cute").flash_attn_varlen_func
    lengths = {
        "cu_seqlens_q": starts,
        "cu_seqlens_k": starts,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
    }
    # The second result is the log-sum-exp.
    return flash(query, key, value, **lengths, causal=causal)[0]


KERNEL = of_flash_attn_4(
    probe="gpu.flash_attn_4_varlen",
    statement=(
        "flash-attn-4 over packed sequences sees no token of another one, forward and backward"
    ),
    cases={dtype: partial(packed_case, dtype, _varlen) for dtype in ("float16", "bfloat16")},
)
