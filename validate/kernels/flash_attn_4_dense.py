"""The kernels of flash-attn-4 over padded batches."""

from functools import partial

from validate.kernels._attention import attention_case
from validate.kernels._flash4 import flash_attention_4, of_flash_attn_4

_dense = partial(attention_case, run=flash_attention_4, bottom_right=True)
KERNEL = of_flash_attn_4(
    probe="gpu.flash_attn_4_dense",
    statement=(
        "flash-attn-4 for head dimensions 64, 96, 128, causal with unequal lengths, "
        "grouped heads, backward"
    ),
    cases={
        "dim 64 causal": partial(
            _dense, "float16", heads=(3, 3), lengths=(257, 257), dim=64, causal=True
        ),
        "dim 96 causal": partial(
            _dense, "bfloat16", heads=(3, 3), lengths=(257, 257), dim=96, causal=True
        ),
        "dim 128 causal unequal": partial(
            _dense, "bfloat16", heads=(3, 3), lengths=(113, 203), dim=128, causal=True
        ),
        "dim 128 cross": partial(
            _dense, "float16", heads=(3, 3), lengths=(129, 331), dim=128, causal=False
        ),
        "dim 128 grouped": partial(
            _dense, "bfloat16", heads=(8, 2), lengths=(777, 777), dim=128, causal=True
        ),
        "dim 64 bfloat16": partial(
            _dense, "bfloat16", heads=(3, 3), lengths=(131, 131), dim=64, causal=False
        ),
    },
)
