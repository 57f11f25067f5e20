"""What the files of FP8 share."""

from __future__ import annotations

import math
from typing import Any

from validate.kernels import from_capability
from validate.kernels._names import DOUBLE_PRODUCT, EAGER, FP8_PRODUCT, FULL_PRECISION_PRODUCT

SUPPORTS = from_capability(8, 9, "FP8 needs Ada or Hopper")
RAN = {"product": FP8_PRODUCT}
OTHERS = {FULL_PRECISION_PRODUCT: "a product of unquantised numbers"}
ASIDE = (EAGER, DOUBLE_PRODUCT)
SQNR_CEILING = 40.0
"""e4m3 has 3 bits of mantissa: a product of normal values comes to 28 dB. One far above was not computed in FP8."""


def decibels(found: Any, wanted: Any) -> float:
    """Signal to quantisation noise."""
    wanted = wanted.double()
    noise = float((found.double() - wanted).norm())
    return 20 * math.log10(float(wanted.norm()) / noise) if noise else 999.0
