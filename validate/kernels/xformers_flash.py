"""G4: xformers' attention with its flash operator pinned."""

from __future__ import annotations

from validate.kernels import RULE_T, Kernel
from validate.kernels._names import XFORMERS_FLASH_BACKWARD, XFORMERS_FLASH_FORWARD
from validate.kernels.xformers_cutlass import cases, declines

KERNEL = Kernel(
    claim="G4",
    probe="gpu.xformers",
    package="xformers",
    statement="xformers' flash attention, forward and backward, as plain torch computes it",
    cases=cases("flash"),
    tolerance={"float16": RULE_T, "bfloat16": RULE_T},
    expected_kernels={"forward": XFORMERS_FLASH_FORWARD, "backward": XFORMERS_FLASH_BACKWARD},
    libraries=(r"xformers/.*\.so",),
    declines=declines("flash"),
)
