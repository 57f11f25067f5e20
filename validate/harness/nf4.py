"""The 4-bit format NF4 in plain torch, and the error that bitsandbytes publishes for it."""

import importlib
from typing import Any, TypedDict

LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The sixteen values of NormalFloat4: QLoRA (arXiv:2305.14314), appendix E."""

BLOCK_SIZE = 64
"""The number of values that share one scale, by default."""
MEAN_ERROR, MEAN_ERROR_SIGMA = 0.072798, 7.4e-5
"""The mean absolute error of quantising 1024 x 1024 values of N(0,1) in blocks of this size, and
its standard deviation: figures of bitsandbytes' own tests (tests/test_functional.py)."""


class ExpectedError(TypedDict):
    """What the claims 4bit-llama/weights and qlora/weights expect of quantised weights."""

    quant_type: str
    block_size: int
    mean_error: float
    mean_error_sigma: float


EXPECTED: ExpectedError = {
    "quant_type": "nf4",
    "block_size": BLOCK_SIZE,
    "mean_error": MEAN_ERROR,
    "mean_error_sigma": MEAN_ERROR_SIGMA,
}


def dequantise(packed: Any, absmax: Any, shape: tuple[int, ...], block: int) -> Any:
    """Decode NF4 codes to float32 weights of this shape.

    Each byte of `packed` holds two codes, the first in its high half; a code is an index in LEVELS.
    `absmax` holds one float32 scale for each `block` values: a value is its level times its scale.
    """
    torch = importlib.import_module("torch")
    pairs = packed.reshape(-1).view(torch.uint8)
    codes = torch.stack((pairs >> 4, pairs & 0xF), dim=1).reshape(-1).long()
    values = torch.tensor(LEVELS, device=codes.device)[codes].view(-1, block)
    return (values * absmax.float().view(-1, 1)).reshape(shape)


def round_weights(weight: Any) -> Any:
    """Return weights as they are after quantising to NF4 and decoding again, in float32.

    NF4 has 16 levels from -1 to 1 (LEVELS); a weight becomes the nearest, times its block's scale.
    Each block of 64 values (BLOCK_SIZE) is scaled by its largest absolute value, so the number of
    values must be a multiple of 64.
    """
    torch = importlib.import_module("torch")
    values = weight.float().reshape(-1, BLOCK_SIZE)
    scale = values.abs().amax(dim=1, keepdim=True)
    levels = torch.tensor(LEVELS, device=weight.device)
    # A value belongs to the nearest level: the bounds lie half-way between two levels.
    bounds = (levels[1:] + levels[:-1]) / 2
    # A block of zeros has the scale 0, by which nothing can be divided.
    smallest = torch.finfo(torch.float32).tiny
    codes = torch.bucketize(values / scale.clamp(min=smallest), bounds)
    return (levels[codes] * scale).reshape(weight.shape)
