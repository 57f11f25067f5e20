"""The kernels of torch's attention through flash-attn-4, which torch offers since 2.11.

The source is torch/nn/attention/_fa4.py.
"""

import importlib
from functools import partial
from typing import Any

from validate.kernels._attention import attention_case
from validate.kernels._flash4 import of_flash_attn_4, on_majors
from validate.kernels._names import at_least
from validate.kernels._sdpa import force_backend


def _run(query: Any, key: Any, value: Any, causal: bool) -> Any:
    """Compute attention by torch's FlashAttention backend, with flash-attn-4 in its place.

    flash-attn-4 stays switched on in this process, so the backward is its own as well.
    """
    attention = importlib.import_module("torch.nn.attention")
    if attention.current_flash_attention_impl() != "FA4":
        attention.activate_flash_attention_impl("FA4")
    return force_backend("FLASH_ATTENTION")(query, key, value, causal)


_UNPACKS_TWO = (
    "torch before 2.14 unpacks two results of flash-attn-4, which has given more since 4.0.0b20 "
    "(torch/nn/attention/_fa4.py, _fa4_run_forward; ValueError on an H100 with torch 2.11)"
)
KERNEL = of_flash_attn_4(
    probe="gpu.sdpa_flash_attn_4",
    statement=(
        "torch's attention through flash-attn-4, forward and backward, as plain torch computes it"
    ),
    cases={
        "float16 causal": partial(
            attention_case,
            "float16",
            heads=(3, 3),
            lengths=(257, 257),
            dim=64,
            causal=True,
            run=_run,
        ),
        "bfloat16 cross": partial(
            attention_case,
            "bfloat16",
            heads=(3, 3),
            lengths=(129, 331),
            dim=128,
            causal=False,
            run=_run,
        ),
    },
    version_obstacle=lambda versions: None if at_least(versions, "torch", "2.14") else _UNPACKS_TWO,
    gpu_obstacle=on_majors(
        9, 10, reason="torch takes flash-attn-4 on these (torch/nn/attention/_fa4.py)"
    ),
)
