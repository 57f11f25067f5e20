"""G3: flash-attn-4 over padded batches."""

from __future__ import annotations

from typing import Any

from validate.kernels import RULE_T
from validate.kernels._attention import case
from validate.kernels._flash4 import of_flash_attn_4, padded


def _of(dtype: str, heads: tuple[int, int], lengths: tuple[int, int], dim: int, causal: bool) -> Any:
    return case(dtype, heads=heads, lengths=lengths, dim=dim, causal=causal, run=padded, bottom_right=True)


KERNEL = of_flash_attn_4(
    statement="flash-attn-4 for head dimensions 64, 96, 128, causal with unequal lengths, grouped heads, backward",
    cases={
        "dim 64 causal": _of("float16", (3, 3), (257, 257), 64, True),
        "dim 96 causal": _of("bfloat16", (3, 3), (257, 257), 96, True),
        "dim 128 causal unequal": _of("bfloat16", (3, 3), (113, 203), 128, True),
        "dim 128 cross": _of("float16", (3, 3), (129, 331), 128, False),
        "dim 128 grouped": _of("bfloat16", (8, 2), (777, 777), 128, True),
        "dim 64 bfloat16": _of("bfloat16", (3, 3), (131, 131), 64, False),
    },
    tolerance={"float16": RULE_T, "bfloat16": RULE_T},
)
