"""The kernels of xformers' attention by its flash operator."""

from functools import partial

from validate.kernels._names import XFORMERS_FLASH_BACKWARD, XFORMERS_FLASH_FORWARD
from validate.kernels.xformers_cutlass import ask_why_not, cases, of_xformers

KERNEL = of_xformers(
    statement="xformers' flash attention, forward and backward, as plain torch computes it",
    cases=cases("flash"),
    expected_kernels={"forward": XFORMERS_FLASH_FORWARD, "backward": XFORMERS_FLASH_BACKWARD},
    declines=partial(ask_why_not, "flash"),
)
