"""Triton kernels of our own, whose names are looked for in the profile.

Import this only after Triton's cache folder is chosen.
"""

# mypy: ignore-errors
# Triton reads parameter annotations as types of its own, so these are no annotations for mypy.

import importlib

triton = importlib.import_module("triton")
tl = importlib.import_module("triton.language")


@triton.jit
def validate_mix(left, right, out, count, BLOCK: tl.constexpr):  # noqa: N803
    """Write left * 3 + (left ^ right) of `count` whole numbers to `out`, BLOCK in each program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(left + at, mask=at < count)
    y = tl.load(right + at, mask=at < count)
    tl.store(out + at, x * 3 + (x ^ y), mask=at < count)


@triton.jit
def validate_softmax(scores, out, columns, BLOCK: tl.constexpr):  # noqa: N803
    """Write the softmax of each row of `scores` to `out`. One program computes one row."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    score = tl.load(scores + row * columns + at, mask=at < columns, other=float("-inf"))
    weight = tl.exp(score - tl.max(score, 0))
    tl.store(out + row * columns + at, weight / tl.sum(weight, 0), mask=at < columns)
