"""NF4 in plain torch, independent of bitsandbytes, and what bitsandbytes says of its own quantiser."""

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
"""Values that share a scale, unless told otherwise."""
MEAN_ERROR, MEAN_ERROR_SIGMA = 0.072798, 7.4e-5
"""Mean absolute error of quantising N(0,1) in such blocks, and its deviation over 1024 x 1024 values: bitsandbytes' own
figures (its tests/test_functional.py)."""


class ExpectedError(TypedDict):
    """What claims 4bit-llama/weights and qlora/weights expect."""

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
    """float32 weights from packed 4-bit codes (first value in the high nibble) and one float32 scale a block."""
    torch = importlib.import_module("torch")
    codes = packed.reshape(-1).view(torch.uint8)
    codes = torch.stack((codes >> 4, codes & 0xF), dim=1).reshape(-1).long()
    values = torch.tensor(LEVELS, device=codes.device)[codes].view(-1, block)
    return (values * absmax.float().view(-1, 1)).reshape(shape)


def round_weights(weight: Any, block: int = BLOCK_SIZE) -> Any:
    """float32 weights, each rounded to the nearest NF4 value of its block's scale."""
    torch = importlib.import_module("torch")
    values = weight.float().reshape(-1, block)
    scale = values.abs().amax(dim=1, keepdim=True)
    levels = torch.tensor(LEVELS, device=weight.device)
    bounds = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(values / scale.clamp(min=torch.finfo(torch.float32).tiny), bounds)
    return (levels[codes] * scale).reshape(weight.shape)
