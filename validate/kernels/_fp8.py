"""What the files of FP8 share."""

from __future__ import annotations

import math
from typing import Any

from validate.kernels import from_capability

SUPPORTS = from_capability(8, 9, "FP8 needs Ada or Hopper")
RAN = (r"^(?!.*at::native).*(nvjet_\w*_q[a-z]|e4m3|float8)",)
"""Products in FP8 by their names (cuBLASLt's `nvjet_sm90_qqtst...` on Hopper, `...e4m3...` before), not conversions."""
SQNR_CEILING = 40.0
"""e4m3 has 3 bits of mantissa: a product of normal values comes to 28 dB. One far above was not computed in FP8."""


def decibels(found: Any, wanted: Any) -> float:
    """Signal to quantisation noise."""
    wanted = wanted.double()
    noise = float((found.double() - wanted).norm())
    return 20 * math.log10(float(wanted.norm()) / noise) if noise else 999.0
