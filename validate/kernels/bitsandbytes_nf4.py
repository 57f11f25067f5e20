"""bitsandbytes: bitsandbytes' 4-bit NF4: the quantiser's own error, and products with 4-bit weights. And what all
files of bitsandbytes share."""

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
    supports=from_capability(7, 5, "bitsandbytes is claimed from Turing on"),
)
SIGMAS = 7.0
_OUT, _IN = 192, 320


def around(mean: float, sigma: float) -> tuple[float, float]:
    """Least and most of a quantiser's error, which is neither larger nor smaller than it must be."""
    return mean - SIGMAS * sigma, mean + SIGMAS * sigma


def _run(x: Any, packed: Any, scales: Any) -> Any:
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
    return importlib.import_module("bitsandbytes").matmul_4bit(x, packed.t(), quant_state=state)


def _plain(x: Any, packed: Any, scales: Any) -> Any:
    return x @ nf4.dequantise(packed, scales, (_OUT, _IN), nf4.BLOCK_SIZE).to(x.dtype).T


def _case(dtype: str, rows: int, grad_inputs: Sequence[str], rng: SeededRandom) -> Case:
    """Any codes are weights: they need not come from a quantiser."""
    inputs = {
        "x": rng.normal(rows, _IN),
        "packed": rng.integers(0, 256, _OUT * _IN // 2, 1, dtype="uint8"),
        "scales": rng.normal(_OUT * _IN // nf4.BLOCK_SIZE).abs() + 0.5,
    }
    return Case(dtype=dtype, inputs=inputs, run=_run, plain=_plain, grad_inputs=grad_inputs)


def _observe(rng: SeededRandom) -> Observed:
    values = rng.normal(1024, 1024).float()
    control = {"unquantised": 0.0, "blocks of 128": mean_error(rng, values, "nf4", 128)}
    return {
        "figures": {
            "mean error": {
                "value": mean_error(rng, values, "nf4", nf4.BLOCK_SIZE),
                "controls": control,
            }
        }
    }


def mean_error(rng: SeededRandom, values: Any, kind: str, block: int) -> float:
    """Mean absolute error of quantising these values on the device and back."""
    functional = importlib.import_module("bitsandbytes.functional")
    codes, state = functional.quantize_4bit(values.to(rng.device), blocksize=block, quant_type=kind)
    return float((functional.dequantize_4bit(codes, state).cpu() - values).abs().mean())


KERNEL = of_bitsandbytes(
    statement="NF4 errs as much as bitsandbytes says, and products with NF4 weights are those of the decoded weights",
    cases={
        "float16": partial(_case, "float16", 77, ["x"]),
        "bfloat16": partial(_case, "bfloat16", 77, ["x"]),
        "float16 one token": partial(_case, "float16", 1, []),
    },
    observe=_observe,
    figures={"mean error": around(nf4.MEAN_ERROR, nf4.MEAN_ERROR_SIGMA)},
    expected_kernels={"quantiser": BNB_QUANTISE, "product": BNB_DEQUANTISE},
)
