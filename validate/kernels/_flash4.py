"""What the files of flash-attn-4 share. It is compiled at run time for the GPU that is there: cold caches, a second or
two a shape."""

import importlib
from functools import partial
from typing import Any

from validate.kernels import Kernel, Supports, from_capability
from validate.kernels._names import FLASH_ATTN_4_BACKWARD, FLASH_ATTN_4_FORWARD


def on_majors(*majors: int, why: str) -> Supports:
    """A gate: the kernel is claimed on these major compute capabilities alone."""
    among = f"is none of {', '.join(map(str, majors))}"
    return lambda capability, _versions: (
        None
        if capability[0] in majors
        else f"{why}: compute capability {capability[0]}.{capability[1]} {among}"
    )


of_flash_attn_4 = partial(
    Kernel,
    check="attention",
    probe="gpu.flash_attn_4",
    package="flash-attn-4",
    expected_kernels={"forward": FLASH_ATTN_4_FORWARD, "backward": FLASH_ATTN_4_BACKWARD},
    other_kernels={
        r"pytorch_flash::": "torch's own FlashAttention",
        r"(?<!pytorch_)flash::flash_(fwd|bwd)": "flash-attn 2's",
        r"cudnn.*(sdpa|flash|[fb]prop|mha)": "cuDNN's",
    },
    libraries=(r"libcute_dsl_runtime\.so",),
    supports=from_capability(
        9,
        0,
        "flash-attn-4 has a backward from Hopper on (flash_attn/cute/interface.py, _flash_attn_bwd)",
    ),
)
FEATURES = on_majors(
    9,
    10,
    11,
    why="soft cap and deterministic gradients (flash_attn/cute/interface.py, _flash_attn_bwd, SM 12.0)",
)
"""Soft cap is a `score_mod` there."""


def padded(query: Any, key: Any, value: Any, causal: bool, **options: Any) -> Any:
    """Attention over (batch, heads, length, dim). The package wants (batch, length, heads, dim), and returns the
    log-sum-exp beside the output."""
    flash = importlib.import_module("flash_attn.cute").flash_attn_func
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    return flash(query, key, value, causal=causal, **options)[0].transpose(1, 2)
