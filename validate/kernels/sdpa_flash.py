"""G2: scaled_dot_product_attention through its FlashAttention."""

from __future__ import annotations

from validate.kernels import RULE_T, Kernel, from_capability
from validate.kernels._sdpa import cases

KERNEL = Kernel(
    claim="G2",
    probe="gpu.sdpa",
    package="torch",
    statement="torch's attention through its FlashAttention, forward and backward, as plain torch computes it",
    cases=cases("FLASH_ATTENTION", "float16", "bfloat16"),
    tolerance={"float16": RULE_T, "bfloat16": RULE_T},
    expected_kernels=(r"pytorch_flash::flash_fwd", r"pytorch_flash::flash_bwd"),
    libraries=(r"libtorch_cuda\.so",),
    supports=from_capability(8, 0, "torch has this backend from Ampere on"),
)
