"""The kernels of torch's own copy of FlashAttention."""

from validate.kernels import from_capability
from validate.kernels._names import SDPA_FLASH_BACKWARD, SDPA_FLASH_FORWARD
from validate.kernels._sdpa import cases, kernels_of_others, of_sdpa

KERNEL = of_sdpa(
    statement=(
        "torch's attention through its FlashAttention, forward and backward, "
        "as plain torch computes it"
    ),
    cases=cases("FLASH_ATTENTION", "float16", "bfloat16"),
    expected_kernels={"forward": SDPA_FLASH_FORWARD, "backward": SDPA_FLASH_BACKWARD},
    other_kernels=kernels_of_others("FlashAttention's"),
    gpu_obstacle=from_capability(8, 0, "torch has this backend from Ampere on"),
)
