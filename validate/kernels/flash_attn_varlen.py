"""The kernels of flash-attn over sequences that are packed one after another."""

import importlib
from functools import partial
from typing import Any

from validate.kernels._flash import of_flash_attn, packed_case


def _varlen(query: Any, key: Any, value: Any, starts: Any, longest: int, *, causal: bool) -> Any:
    """Return attention over packed sequences. Arguments as in `packed_case`."""
    flash = importlib.import_module("flash_attn").flash_attn_varlen_func
    return flash(query, key, value, starts, starts, longest, longest, causal=causal)


KERNEL = of_flash_attn(
    statement="flash-attn over packed sequences sees no token of another one, forward and backward",
    cases={dtype: partial(packed_case, dtype, _varlen) for dtype in ("float16", "bfloat16")},
)
