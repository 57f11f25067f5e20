"""G2: scaled_dot_product_attention through its memory-efficient kernels."""

from __future__ import annotations

from validate.kernels import RULE_T, Kernel
from validate.kernels._sdpa import cases

KERNEL = Kernel(
    claim="G2",
    probe="gpu.sdpa",
    package="torch",
    statement="torch's attention through its memory-efficient kernels, forward and backward, as plain torch does it",
    cases=cases("EFFICIENT_ATTENTION", "float32", "float16"),
    tolerance={"float32": RULE_T, "float16": RULE_T},
    expected_kernels=(r"fmha_cutlassF|AttentionKernel", r"fmha_cutlassB|AttentionBackwardKernel"),
    libraries=(r"libtorch_cuda\.so",),
)
