"""G4: xformers' attention with its cutlass operator pinned."""

from __future__ import annotations

from validate.kernels import RULE_T, Kernel
from validate.kernels._xformers import cases, declines

KERNEL = Kernel(
    claim="G4",
    probe="gpu.xformers",
    package="xformers",
    statement="xformers' cutlass attention, forward and backward, as plain torch computes it",
    cases=cases("cutlass"),
    tolerance={"float16": RULE_T, "bfloat16": RULE_T},
    expected_kernels=(r"fmha_cutlassF", r"fmha_cutlassB"),
    libraries=(r"xformers/.*\.so",),
    declines=declines("cutlass"),
)
