"""fp8: torchao's FP8 linear layer for inference: activations quantised as they come, weights beforehand."""

import importlib

from validate.kernels import Observed, SeededRandom
from validate.kernels.fp8_scaled_mm import SQNR_CEILING, decibels, of_fp8


def _observe(rng: SeededRandom) -> Observed:
    torch, quantization = rng.torch, importlib.import_module("torchao.quantization")
    layer = torch.nn.Linear(272, 144, bias=False, dtype=torch.bfloat16)
    weight, x = rng.normal(144, 272, deviation=272**-0.5), rng.normal(208, 272)
    with torch.no_grad():
        layer.weight.copy_(weight)
    layer = layer.to(rng.device)
    wanted = x.bfloat16().double() @ layer.weight.detach().cpu().double().T
    quantization.quantize_(layer, quantization.Float8DynamicActivationFloat8WeightConfig())
    with torch.no_grad():
        found = layer(x.bfloat16().to(rng.device)).cpu().double()
    controls = {
        "scaled by 1.15": decibels(found * 1.15, wanted),
        "no rounding": decibels(wanted.float(), wanted),
    }
    return {
        "figures": {"SQNR in dB": {"value": decibels(found, wanted), "controls": controls}},
        "facts": {
            "weight is quantised": "loat8" in type(layer.weight).__name__
            or "float8" in repr(layer.weight)
        },
    }


KERNEL = of_fp8(
    package="torchao",
    statement="torchao's FP8 linear layer keeps 18 dB of signal to noise",
    observe=_observe,
    figures={"SQNR in dB": (18.0, SQNR_CEILING)},
    facts={"weight is quantised": True},
)
