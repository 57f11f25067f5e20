"""Comparisons of measured numbers. Not-a-number and infinity arrive as text, and satisfy no bound."""

from __future__ import annotations

import math
from typing import TypeGuard


def is_finite(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and math.isfinite(value)


def is_within(value: object, bound: float) -> bool:
    """Whether an error is at most `bound`. Negative numbers are no errors."""
    return is_finite(value) and 0 <= value <= bound


def is_beyond(value: object, bound: float) -> bool:
    return is_finite(value) and value > bound


def is_between(value: object, least: float, most: float) -> bool:
    return is_finite(value) and least <= value <= most


def scientific(value: object) -> str:
    """A number as `1.23e-05`, anything else as text."""
    return f"{value:.2e}" if isinstance(value, int | float) else str(value)
