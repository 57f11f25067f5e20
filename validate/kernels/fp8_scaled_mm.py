"""The kernel of an FP8 matrix product (e4m3) through torch._scaled_mm.

It also has what the files of torchao's FP8 share.
"""

import math
from functools import partial
from typing import Any

from validate.kernels import Kernel, Observed, SeededRandom, from_capability
from validate.kernels._names import DOUBLE_PRODUCT, EAGER, FP8_PRODUCT, FULL_PRECISION_PRODUCT

of_fp8 = partial(
    Kernel,
    check="fp8",
    probe="gpu.fp8",
    expected_kernels={"product": FP8_PRODUCT},
    other_kernels={FULL_PRECISION_PRODUCT: "a product of unquantised numbers"},
    aside_kernels=(EAGER, DOUBLE_PRODUCT),
    gpu_obstacle=from_capability(8, 9, "FP8 needs Ada or Hopper"),
)
SQNR_CEILING = 40.0
"""e4m3 has 3 bits of mantissa: a product of normal values comes to 28 dB. One far above was not
computed in FP8."""
_LARGEST_E4M3 = 448.0
"""The largest number of float8_e4m3fn."""


def decibels(result: Any, exact: Any) -> float:
    """Return the signal-to-quantisation-noise ratio (SQNR) of a result; 999 if it is exact.

    SQNR = 20 log10(|exact| / |result - exact|), in 2-norms: 20 dB is an error of 10 %.
    """
    exact = exact.double()
    signal = float(exact.norm())
    noise = float((result.double() - exact).norm())
    if not noise:
        return 999.0
    return 20 * math.log10(signal / noise)


def _observe(rng: SeededRandom) -> Observed:
    """Multiply two matrices in FP8, and return the signal-to-noise ratio in dB (SQNR).

    The exact product is computed in float64. Controls are results that must be noticed as wrong:
    scaled, with rows in another order, and too exact to have been rounded to FP8.
    """
    torch = rng.torch
    # FP8 products need multiples of 16. These sizes are odd multiples.
    left = rng.normal(208, 272).to(rng.device)
    right = rng.normal(144, 272).to(rng.device)

    def quantise(matrix: Any) -> tuple[Any, Any]:
        """Return a matrix in FP8, and the scale that its numbers were divided by.

        The largest number becomes the largest one of the format (_LARGEST_E4M3).
        """
        scale = matrix.abs().max() / _LARGEST_E4M3
        scaled = (matrix / scale).to(torch.float32)
        return scaled.to(torch.float8_e4m3fn), scale.float()

    left_fp8, left_scale = quantise(left)
    right_fp8, right_scale = quantise(right)
    product = torch._scaled_mm(
        left_fp8,
        right_fp8.t(),
        scale_a=left_scale,
        scale_b=right_scale,
        out_dtype=torch.bfloat16,
    ).double()
    exact = left @ right.T
    # Float32 instead of FP8: its ratio is above SQNR_CEILING.
    too_exact = exact.to(torch.float32).double()
    controls = {
        "scaled by 1.1": decibels(product * 1.1, exact),
        "rows rolled": decibels(product.roll(1, 0), exact),
        "no rounding": decibels(too_exact, exact),
    }
    ratio = decibels(product, exact)
    return {"figures": {"SQNR in dB": {"value": ratio, "controls": controls}}}


KERNEL = of_fp8(
    package="torch",
    statement="an FP8 product keeps 25 dB of signal to noise",
    observe=_observe,
    figures={"SQNR in dB": (25.0, SQNR_CEILING)},
)
