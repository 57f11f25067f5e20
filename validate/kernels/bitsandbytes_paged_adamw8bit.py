"""The kernel of bitsandbytes' paged 8-bit AdamW: the driver may move its states to the host."""

from functools import partial

from validate.kernels._names import BNB_ADAMW_8BIT
from validate.kernels.bitsandbytes_adamw8bit import ASIDE, DIFFERENCE, EXPECTED, observe
from validate.kernels.bitsandbytes_nf4 import of_bitsandbytes

KERNEL = of_bitsandbytes(
    statement=(
        "paged 8-bit AdamW keeps uint8 states in managed memory "
        "and ends as near to float64 as 8 bits can"
    ),
    observe=partial(observe, optimizer="PagedAdamW8bit"),
    figures={DIFFERENCE: EXPECTED},
    facts={"states": ["torch.uint8", "torch.uint8"], "paged": True},
    expected_kernels={"step": BNB_ADAMW_8BIT},
    aside_kernels=ASIDE,
)
