"""What the files of flash-attn-4 share.

flash-attn-4 compiles its kernels for the GPU when they are first called: from cold caches that
takes a second or two for each shape.
"""

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from validate.kernels import Capability, Kernel, Supports, from_capability
from validate.kernels._names import FLASH_ATTN_4_BACKWARD, FLASH_ATTN_4_FORWARD


def on_majors(*majors: int, reason: str) -> Supports:
    """Return a `Kernel.supports` that claims the kernel only on these major compute capabilities.

    reason: for which others cannot run it, with its source.
    """

    def supports(capability: Capability, _versions: Mapping[str, str]) -> str | None:
        """Return why the kernel cannot run with this capability; None: it can."""
        major, minor = capability
        if major in majors:
            return None
        listed = ", ".join(map(str, majors))
        return f"{reason}: compute capability {major}.{minor} is none of {listed}"

    return supports


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
        "flash-attn-4 has a backward from Hopper on "
        "(flash_attn/cute/interface.py, _flash_attn_bwd)",
    ),
)
FEATURES = on_majors(
    9,
    10,
    11,
    reason=(
        "soft cap and deterministic gradients "
        "(flash_attn/cute/interface.py, _flash_attn_bwd, SM 12.0)"
    ),
)
"""The GPUs on which flash-attn-4 has all its features. Soft cap is a `score_mod` there."""


def flash_attention_4(query: Any, key: Any, value: Any, causal: bool, **options: Any) -> Any:
    """Return attention over (batch, heads, length, dim) by flash-attn-4.

    The package has heads after the length, and returns the log-sum-exp beside the output.
    """
    flash = importlib.import_module("flash_attn.cute").flash_attn_func
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    return flash(query, key, value, causal=causal, **options)[0].transpose(1, 2)
