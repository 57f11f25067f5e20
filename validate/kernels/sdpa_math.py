"""The kernels of torch's attention through plain matrix products."""

from validate.kernels import RULE_T
from validate.kernels._sdpa import FUSED, cases, of_sdpa

KERNEL = of_sdpa(
    statement=(
        "torch's attention through plain products, forward and backward, as plain torch computes it"
    ),
    cases=cases("MATH", "float32", "float16"),
    tolerance={"float32": RULE_T, "float16": RULE_T},
    other_kernels=FUSED,
)
