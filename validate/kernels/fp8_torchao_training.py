"""The kernel of torchao's FP8 linear layer for training: its output and both gradients."""

import importlib

from validate.kernels import Observed, SeededRandom
from validate.kernels._evidence import Figure
from validate.kernels.fp8_scaled_mm import SQNR_CEILING, decibels, of_fp8


def _observe(rng: SeededRandom) -> Observed:
    """Run a layer in FP8 forward and backward, and return each result's signal-to-noise ratio.

    Exact results are products of the same bfloat16 numbers in float64. Controls are results that
    must be noticed as wrong: scaled, and too exact to have been rounded to FP8.
    """
    torch = rng.torch
    float8 = importlib.import_module("torchao.float8")
    # FP8 products need multiples of 16. These sizes are odd multiples.
    layer = torch.nn.Linear(272, 144, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.copy_(rng.normal(144, 272, deviation=272**-0.5))
    inputs = rng.normal(208, 272).bfloat16()
    upstream = rng.normal(208, 144).bfloat16()  # the gradient of the output
    weight = layer.weight.detach().double()

    # torchao replaces linear layers inside a model, so the layer is put into one.
    model = float8.convert_to_float8_training(torch.nn.Sequential(layer.to(rng.device)))
    inputs_on_device = inputs.to(rng.device).requires_grad_(True)
    output = model(inputs_on_device)
    output.backward(upstream.to(rng.device))

    exact_output = inputs.double() @ weight.T
    exact_input_gradient = upstream.double() @ weight
    exact_weight_gradient = upstream.double().T @ inputs.double()
    # Name of a result -> what FP8 gave, and the exact value.
    pairs = {
        "output": (output.detach().cpu(), exact_output),
        "gradient x": (inputs_on_device.grad.cpu(), exact_input_gradient),
        "gradient weight": (model[0].weight.grad.cpu(), exact_weight_gradient),
    }
    figures: dict[str, Figure] = {}
    for name, (result, exact) in pairs.items():
        figures[f"SQNR of {name} in dB"] = {
            "value": decibels(result, exact),
            "controls": {
                "scaled by 1.15": decibels(result.double() * 1.15, exact),
                # Float32 instead of FP8: its ratio is above SQNR_CEILING.
                "no rounding": decibels(exact.float(), exact),
            },
        }
    # The layer's class shows that torchao replaced it: `Float8Linear`.
    return {"figures": figures, "facts": {"layer": type(model[0]).__name__}}


KERNEL = of_fp8(
    package="torchao",
    statement=(
        "torchao's FP8 training keeps 18 dB of signal to noise forward, 17 dB in both gradients"
    ),
    observe=_observe,
    figures={
        "SQNR of output in dB": (18.0, SQNR_CEILING),
        "SQNR of gradient x in dB": (17.0, SQNR_CEILING),
        "SQNR of gradient weight in dB": (17.0, SQNR_CEILING),
    },
    facts={"layer": "Float8Linear"},
)
