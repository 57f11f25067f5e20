"""fp8: torchao's FP8 linear layer for training: output and both gradients."""

import importlib

from validate.kernels import Observed, SeededRandom
from validate.kernels.fp8_scaled_mm import SQNR_CEILING, decibels, of_fp8


def _observe(rng: SeededRandom) -> Observed:
    torch, float8 = rng.torch, importlib.import_module("torchao.float8")
    layer = torch.nn.Linear(272, 144, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.copy_(rng.normal(144, 272, deviation=272**-0.5))
    x, upstream = rng.normal(208, 272).bfloat16(), rng.normal(208, 144).bfloat16()
    weight = layer.weight.detach().double()
    model = float8.convert_to_float8_training(torch.nn.Sequential(layer.to(rng.device)))
    given = x.to(rng.device).requires_grad_(True)
    found = model(given)
    found.backward(upstream.to(rng.device))
    pairs = {
        "output": (found.detach().cpu(), x.double() @ weight.T),
        "gradient x": (given.grad.cpu(), upstream.double() @ weight),
        "gradient weight": (model[0].weight.grad.cpu(), upstream.double().T @ x.double()),
    }
    return {
        "figures": {
            f"SQNR of {name} in dB": {
                "value": decibels(value, wanted),
                "controls": {
                    "scaled by 1.15": decibels(value.double() * 1.15, wanted),
                    "no rounding": decibels(wanted.float(), wanted),
                },
            }
            for name, (value, wanted) in pairs.items()
        },
        "facts": {"layer": type(model[0]).__name__},
    }


KERNEL = of_fp8(
    package="torchao",
    statement="torchao's FP8 training keeps 18 dB of signal to noise forward, 17 dB in both gradients",
    observe=_observe,
    figures={
        "SQNR of output in dB": (18.0, SQNR_CEILING),
        "SQNR of gradient x in dB": (17.0, SQNR_CEILING),
        "SQNR of gradient weight in dB": (17.0, SQNR_CEILING),
    },
    facts={"layer": "Float8Linear"},
)
