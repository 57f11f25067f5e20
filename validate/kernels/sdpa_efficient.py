"""The kernels of torch's memory-efficient attention."""

from validate.kernels import RULE_T
from validate.kernels._names import SDPA_EFFICIENT_BACKWARD, SDPA_EFFICIENT_FORWARD
from validate.kernels._sdpa import cases, kernels_of_others, of_sdpa

KERNEL = of_sdpa(
    statement=(
        "torch's attention through its memory-efficient kernels, forward and backward, "
        "as plain torch does it"
    ),
    cases=cases("EFFICIENT_ATTENTION", "float32", "float16"),
    tolerance={"float32": RULE_T, "float16": RULE_T},
    expected_kernels={"forward": SDPA_EFFICIENT_FORWARD, "backward": SDPA_EFFICIENT_BACKWARD},
    other_kernels=kernels_of_others("memory-efficient attention's"),
)
