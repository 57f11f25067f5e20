"""The kernels of bitsandbytes' 4-bit NF4: its quantiser, and products with 4-bit weights.

It also has what all files of bitsandbytes share.
"""

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from validate.harness import nf4
from validate.kernels import Case, Kernel, Observed, SeededRandom, from_capability
from validate.kernels._names import BNB_DEQUANTISE, BNB_QUANTISE

of_bitsandbytes = partial(
    Kernel,
    check="bitsandbytes",
    probe="gpu.bitsandbytes",
    package="bitsandbytes",
    libraries=(r"bitsandbytes/libbitsandbytes_cuda\d+\.so",),
    gpu_obstacle=from_capability(7, 5, "bitsandbytes is claimed from Turing on"),
)
SIGMAS = 7.0
"""How far a figure may be from its mean, in standard deviations."""
_OUT, _IN = 192, 320
"""The shape of the weight."""


def bounds_around(mean: float, sigma: float) -> tuple[float, float]:
    """Return the least and the most of a quantiser's error.

    An error that is too small is wrong as well: then nothing was quantised.
    """
    return mean - SIGMAS * sigma, mean + SIGMAS * sigma


def _run(x: Any, packed: Any, scales: Any) -> Any:
    """Return x @ weight^T by bitsandbytes, for a 4-bit weight of (_OUT, _IN).

    x: (rows, _IN).
    packed: the weight's codes, two in a byte, as one column.
    scales: one for each block of nf4.BLOCK_SIZE codes. A code stands for a number in [-1, 1], which
        is multiplied by the scale of its block.
    """
    functional = importlib.import_module("bitsandbytes.functional")
    torch = importlib.import_module("torch")
    state = functional.QuantState(
        absmax=scales.float(),
        shape=torch.Size((_OUT, _IN)),
        code=functional.get_4bit_type("nf4", device=x.device),
        blocksize=nf4.BLOCK_SIZE,
        quant_type="nf4",
        dtype=x.dtype,
    )
    # bitsandbytes takes the codes as a row, as its Linear4bit passes them.
    return importlib.import_module("bitsandbytes").matmul_4bit(x, packed.t(), quant_state=state)


def _plain(x: Any, packed: Any, scales: Any) -> Any:
    """Return the same product with the decoded weight, in plain torch."""
    weight = nf4.dequantise(packed, scales, (_OUT, _IN), nf4.BLOCK_SIZE)
    return x @ weight.to(x.dtype).T


def _case(dtype: str, rows: int, grad_inputs: Sequence[str], rng: SeededRandom) -> Case:
    """Return a case of a matrix product with a weight in bitsandbytes' 4-bit format NF4.

    dtype: torch's name of the dtype in which the product is computed.
    rows: of the input; for one row, a single token, bitsandbytes runs another CUDA kernel.
    grad_inputs: inputs whose gradients are compared.
    """
    # The codes and scales of the weight are random, and the reference computes with the same ones.
    # A weight that was quantised for this would have rounding errors, which could hide errors of
    # the product.
    weight_values = _OUT * _IN
    inputs = {
        "x": rng.normal(rows, _IN),
        # One column of bytes, each with two codes of 4 bits.
        "packed": rng.integers(0, 256, weight_values // 2, 1, dtype="uint8"),
        "scales": rng.normal(weight_values // nf4.BLOCK_SIZE).abs() + 0.5,
    }
    return Case(dtype=dtype, inputs=inputs, run=_run, plain=_plain, grad_inputs=grad_inputs)


def _observe(rng: SeededRandom) -> Observed:
    """Return the mean error of quantising normal numbers to NF4 and back.

    Two controls must be noticed as wrong: no error at all, and the error of larger blocks.
    """
    values = rng.normal(1024, 1024).float()
    controls = {"unquantised": 0.0, "blocks of 128": mean_error(rng, values, "nf4", 128)}
    error = mean_error(rng, values, "nf4", nf4.BLOCK_SIZE)
    return {"figures": {"mean error": {"value": error, "controls": controls}}}


def mean_error(rng: SeededRandom, values: Any, kind: str, block: int) -> float:
    """Return the mean absolute error of quantising these values on the device and back.

    kind: `nf4` or `fp4`. block: how many values share a scale.
    """
    functional = importlib.import_module("bitsandbytes.functional")
    codes, state = functional.quantize_4bit(values.to(rng.device), blocksize=block, quant_type=kind)
    decoded = functional.dequantize_4bit(codes, state).cpu()
    return float((decoded - values).abs().mean())


KERNEL = of_bitsandbytes(
    statement=(
        "NF4 errs as much as bitsandbytes says, "
        "and products with NF4 weights are those of the decoded weights"
    ),
    cases={
        "float16": partial(_case, "float16", 77, ["x"]),
        "bfloat16": partial(_case, "bfloat16", 77, ["x"]),
        "float16 one token": partial(_case, "float16", 1, []),
    },
    observe=_observe,
    figures={"mean error": bounds_around(nf4.MEAN_ERROR, nf4.MEAN_ERROR_SIGMA)},
    expected_kernels={"quantiser": BNB_QUANTISE, "product": BNB_DEQUANTISE},
)
