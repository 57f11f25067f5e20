"""What the files of flash-attn-4 share.

flash-attn-4 compiles its kernels for the GPU when they are first called: from cold caches that
takes a second or two for each shape. So each file has a probe of its own: they compile at once.
"""

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from validate.kernels import Capability, GpuObstacle, Kernel, from_capability
from validate.kernels._names import FLASH_ATTN_4_BACKWARD, FLASH_ATTN_4_FORWARD


def on_majors(*majors: int, reason: str) -> GpuObstacle:
    """Return a `Kernel.gpu_obstacle` that allows only these majors of the compute capability.

    That is a function which says why a GPU cannot run a kernel, or None if it can.

    majors: the first numbers of capabilities: 9 for 9.0.
    reason: what they are needed for, with its source. The answer for another GPU begins with it:
        `REASON: compute capability 8.6 is none of 9, 10`.
    """

    def explain(capability: Capability, _versions: Mapping[str, str]) -> str | None:
        """Return why a GPU of this capability cannot run the kernel; None: it can."""
        major, minor = capability
        if major in majors:
            return None
        listed = ", ".join(map(str, majors))
        return f"{reason}: compute capability {major}.{minor} is none of {listed}"

    return explain


of_flash_attn_4 = partial(
    Kernel,
    check="attention",
    package="flash-attn-4",
    expected_kernels={"forward": FLASH_ATTN_4_FORWARD, "backward": FLASH_ATTN_4_BACKWARD},
    other_kernels={
        r"pytorch_flash::": "torch's own FlashAttention",
        r"(?<!pytorch_)flash::flash_(fwd|bwd)": "flash-attn 2's",
        r"cudnn.*(sdpa|flash|[fb]prop|mha)": "cuDNN's",
    },
    libraries=(r"libcute_dsl_runtime\.so",),
    gpu_obstacle=from_capability(
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

    options: further arguments of the package's flash_attn_func.
    """
    flash = importlib.import_module("flash_attn.cute").flash_attn_func
    # The package has heads after the length.
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    # The first result is the output, the second the log-sum-exp.
    output = flash(query, key, value, causal=causal, **options)[0]
    return output.transpose(1, 2)
