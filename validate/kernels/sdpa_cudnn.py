"""G2: scaled_dot_product_attention through cuDNN."""

from __future__ import annotations

from validate.kernels import RULE_T, Kernel, from_capability
from validate.kernels._sdpa import cases

KERNEL = Kernel(
    claim="G2",
    probe="gpu.sdpa",
    package="torch",
    statement="torch's attention through cuDNN, forward and backward, as plain torch computes it",
    cases=cases("CUDNN_ATTENTION", "float16", "bfloat16"),
    tolerance={"float16": RULE_T, "bfloat16": RULE_T},
    expected_kernels=(
        r"cudnn.*(sdpa|flash|fprop|mha)",
        r"cudnn.*(sdpa|flash|bprop|mha).*(bprop|bwd|dgrad|backward)|cudnn.*bprop",
    ),
    libraries=(r"libtorch_cuda\.so",),
    supports=from_capability(8, 0, "torch has this backend from Ampere on"),
)
