"""The kernel of torchao's FP8 linear layer for inference.

Activations are quantised as they come, weights beforehand.
"""

import importlib

from validate.kernels import Observed, SeededRandom
from validate.kernels.fp8_scaled_mm import SQNR_CEILING, decibels, of_fp8


def _observe(rng: SeededRandom) -> Observed:
    """Quantise a bfloat16 layer, run it, and return its signal-to-noise ratio in dB (SQNR).

    The exact result is that of the layer before it was quantised, in float64. Two controls must be
    noticed as wrong: the output scaled, and a result too exact to have been rounded to FP8.
    """
    torch = rng.torch
    quantization = importlib.import_module("torchao.quantization")
    # FP8 products need multiples of 16. These sizes are odd multiples.
    layer = torch.nn.Linear(272, 144, bias=False, dtype=torch.bfloat16)
    weight = rng.normal(144, 272, deviation=272**-0.5)
    inputs = rng.normal(208, 272).bfloat16()
    with torch.no_grad():
        layer.weight.copy_(weight)
    layer = layer.to(rng.device)
    rounded_weight = layer.weight.detach().cpu().double()
    exact = inputs.double() @ rounded_weight.T

    quantization.quantize_(layer, quantization.Float8DynamicActivationFloat8WeightConfig())
    with torch.no_grad():
        output = layer(inputs.to(rng.device)).cpu().double()
    controls = {
        "scaled by 1.15": decibels(output * 1.15, exact),
        # Float32 instead of FP8: its ratio is above SQNR_CEILING.
        "no rounding": decibels(exact.float(), exact),
    }

    # A weight in FP8 says so in the name of its class (`Float8Tensor`), or in its text form.
    is_quantised = "loat8" in type(layer.weight).__name__ or "float8" in repr(layer.weight)
    return {
        "figures": {"SQNR in dB": {"value": decibels(output, exact), "controls": controls}},
        "facts": {"weight is quantised": is_quantised},
    }


KERNEL = of_fp8(
    package="torchao",
    statement="torchao's FP8 linear layer keeps 18 dB of signal to noise",
    observe=_observe,
    figures={"SQNR in dB": (18.0, SQNR_CEILING)},
    facts={"weight is quantised": True},
)
