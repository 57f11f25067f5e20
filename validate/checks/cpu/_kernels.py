"""Triton kernels that are compiled, never run. Import only where Triton's cache folder has been chosen."""

# mypy: ignore-errors
# Triton reads parameter annotations as types of its own, so these are no annotations for mypy.

import importlib

triton = importlib.import_module("triton")
tl = importlib.import_module("triton.language")


def _add(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


def _softmax(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.arange(0, BLOCK)
    at = row[:, None] * BLOCK + row[None, :]
    score = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32) + tl.load(
        y + at, mask=at < n, other=0.0
    )
    weight = tl.exp(score - tl.max(score, 1)[:, None])
    tl.store(out + at, weight / tl.sum(weight, 1)[:, None], mask=at < n)


def _matmul(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.arange(0, BLOCK)
    at = row[:, None] * BLOCK + row[None, :]
    product = tl.dot(
        tl.load(x + at, mask=at < n, other=0.0), tl.load(y + at, mask=at < n, other=0.0)
    )
    tl.store(out + at, product, mask=at < n)


SIGNATURE = {"x": "*fp16", "y": "*fp16", "out": "*fp32", "n": "i32"}
CONSTANTS = {"BLOCK": 32}
add, softmax, matmul = triton.jit(_add), triton.jit(_softmax), triton.jit(_matmul)
