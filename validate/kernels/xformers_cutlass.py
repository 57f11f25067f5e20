"""G4: xformers' attention with its cutlass operator pinned."""

from __future__ import annotations

from validate.kernels import RULE_T, Kernel
from validate.kernels._names import XFORMERS_CUTLASS_BACKWARD, XFORMERS_CUTLASS_FORWARD
from validate.kernels._xformers import cases, declines

KERNEL = Kernel(
    claim="G4",
    probe="gpu.xformers",
    package="xformers",
    statement="xformers' cutlass attention, forward and backward, as plain torch computes it",
    cases=cases("cutlass"),
    tolerance={"float16": RULE_T, "bfloat16": RULE_T},
    needs_capability={
        "bfloat16 cross": (
            (8, 0),
            "xformers takes bfloat16 on newer GPUs alone (ops/fmha/common.py, not_supported_reasons)",
        )
    },
    expected_kernels={"forward": XFORMERS_CUTLASS_FORWARD, "backward": XFORMERS_CUTLASS_BACKWARD},
    libraries=(r"xformers/.*\.so",),
    declines=declines("cutlass"),
)
