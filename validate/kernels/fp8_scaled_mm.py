"""fp8: an FP8 matrix product (e4m3) through torch._scaled_mm, and what torchao's files of FP8 share."""

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
    supports=from_capability(8, 9, "FP8 needs Ada or Hopper"),
)
SQNR_CEILING = 40.0
"""e4m3 has 3 bits of mantissa: a product of normal values comes to 28 dB. One far above was not computed in FP8."""
_E4M3_LARGEST = 448.0


def decibels(found: Any, wanted: Any) -> float:
    """Signal to quantisation noise."""
    wanted = wanted.double()
    noise = float((found.double() - wanted).norm())
    return 20 * math.log10(float(wanted.norm()) / noise) if noise else 999.0


def _observe(rng: SeededRandom) -> Observed:
    """Signal to noise of the product, and that of controls: 5 % off, and rows in each other's place."""
    torch = rng.torch
    left, right = rng.normal(208, 272).to(rng.device), rng.normal(144, 272).to(rng.device)

    def scaled(matrix: Any) -> tuple[Any, Any]:
        scale = matrix.abs().max() / _E4M3_LARGEST
        return (matrix / scale).to(torch.float32).to(torch.float8_e4m3fn), scale.float()

    (a, a_scale), (b, b_scale) = scaled(left), scaled(right)
    found = torch._scaled_mm(
        a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16
    ).double()
    wanted = left @ right.T
    controls = {
        "scaled by 1.1": decibels(found * 1.1, wanted),
        "rows rolled": decibels(found.roll(1, 0), wanted),
    }
    controls["no rounding"] = decibels(wanted.to(torch.float32).double(), wanted)
    return {"figures": {"SQNR in dB": {"value": decibels(found, wanted), "controls": controls}}}


KERNEL = of_fp8(
    package="torch",
    statement="an FP8 product keeps 25 dB of signal to noise",
    observe=_observe,
    figures={"SQNR in dB": (25.0, SQNR_CEILING)},
)
