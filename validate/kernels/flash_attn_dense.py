"""The kernels of flash-attn over padded batches.

Dropout, ALiBi, soft cap and local windows are left out: builds may lack them.
"""

import importlib
from functools import partial
from typing import Any

from validate.kernels._attention import attention_case
from validate.kernels._flash import of_flash_attn


def _flash_attention(query: Any, key: Any, value: Any, causal: bool) -> Any:
    """Compute attention with flash-attn, for tensors of the layout (batch, heads, length, dim)."""
    flash_attn_func = importlib.import_module("flash_attn").flash_attn_func
    # flash-attn's own layout is (batch, length, heads, dim).
    output = flash_attn_func(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), causal=causal
    )
    return output.transpose(1, 2)


_dense = partial(attention_case, run=_flash_attention, bottom_right=True)
KERNEL = of_flash_attn(
    statement=(
        "flash-attn for head dimensions 64, 128 and 256, causal with unequal lengths, "
        "grouped heads, backward"
    ),
    cases={
        "dim 64 causal": partial(
            _dense, "float16", heads=(3, 3), lengths=(257, 257), dim=64, causal=True
        ),
        "dim 128 causal unequal": partial(
            _dense, "bfloat16", heads=(3, 3), lengths=(113, 203), dim=128, causal=True
        ),
        "dim 256 cross": partial(
            _dense, "float16", heads=(3, 3), lengths=(129, 331), dim=256, causal=False
        ),
        "dim 128 grouped": partial(
            _dense, "float16", heads=(6, 2), lengths=(191, 191), dim=128, causal=True
        ),
        "dim 64 bfloat16": partial(
            _dense, "bfloat16", heads=(3, 3), lengths=(131, 131), dim=64, causal=False
        ),
    },
)
