"""The kernels of xformers' attention by its flash operator."""

from validate.kernels._names import XFORMERS_FLASH_BACKWARD, XFORMERS_FLASH_FORWARD
from validate.kernels.xformers_cutlass import cases, declines, of_xformers

KERNEL = of_xformers(
    statement="xformers' flash attention, forward and backward, as plain torch computes it",
    cases=cases("flash"),
    expected_kernels={"forward": XFORMERS_FLASH_FORWARD, "backward": XFORMERS_FLASH_BACKWARD},
    declines=declines("flash"),
)
