"""Rule T: an error may be this many times plain torch's error in the same dtype, plus an absolute part."""

from __future__ import annotations

RULE_T = "T"
"""How a claim names the rule in place of a number."""
FORWARD_FACTOR, FORWARD_FLOOR = 2.0, 1e-5
BACKWARD_FACTOR, BACKWARD_FLOOR = 3.0, 2e-4


def forward(plain_error: float) -> float:
    """The largest relative error of a forward result."""
    return FORWARD_FACTOR * plain_error + FORWARD_FLOOR


def backward(plain_error: float) -> float:
    """The largest relative error of a gradient."""
    return BACKWARD_FACTOR * plain_error + BACKWARD_FLOOR
