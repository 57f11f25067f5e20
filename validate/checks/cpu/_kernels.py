"""Triton kernels that the check `triton` compiles and never runs.

Importing this file imports Triton, which then reads where its cache folder is.
"""

# mypy: ignore-errors
# Triton reads parameter annotations as types of its own, so these are no annotations for mypy.

import importlib

triton = importlib.import_module("triton")
tl = importlib.import_module("triton.language")


def _add(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803
    """Write the sum of two vectors of `n` values to `out`, with one block of BLOCK values."""
    offset = tl.arange(0, BLOCK)
    mask = offset < n
    total = tl.load(x + offset, mask=mask) + tl.load(y + offset, mask=mask)
    tl.store(out + offset, total, mask=mask)


def _softmax(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803
    """Write the softmax over each row of x + y to `out`: BLOCK x BLOCK matrices."""
    index = tl.arange(0, BLOCK)
    offset = index[:, None] * BLOCK + index[None, :]
    mask = offset < n
    score = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
    score += tl.load(y + offset, mask=mask, other=0.0)
    weight = tl.exp(score - tl.max(score, 1)[:, None])
    tl.store(out + offset, weight / tl.sum(weight, 1)[:, None], mask=mask)


def _matmul(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803
    """Write the product of two BLOCK x BLOCK matrices to `out`."""
    index = tl.arange(0, BLOCK)
    offset = index[:, None] * BLOCK + index[None, :]
    mask = offset < n
    left = tl.load(x + offset, mask=mask, other=0.0)
    right = tl.load(y + offset, mask=mask, other=0.0)
    tl.store(out + offset, tl.dot(left, right), mask=mask)


# In Triton's notation: `*fp16` is a pointer to float16 numbers.
SIGNATURE = {"x": "*fp16", "y": "*fp16", "out": "*fp32", "n": "i32"}
CONSTANTS = {"BLOCK": 32}
add, softmax, matmul = triton.jit(_add), triton.jit(_softmax), triton.jit(_matmul)
