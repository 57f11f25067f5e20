"""Steps of an AdamW that a package compiles, held against torch's AdamW in float64 on the same gradients."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from validate.harness import seeding

_SETTINGS = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
_STEPS = 4
_SHAPES = ((1,), (37, 29), (4099,))
"""Lengths that no vector's width divides: the loops' ends are taken, too."""

Make = Callable[..., Any]
"""From parameters and the settings of AdamW to an optimiser."""


LARGEST_DEVIATION = 2e-6
"""Four steps of 0.01 on weights of order 1 to 4, in float32: rounding is 5e-7 and less."""
LEAST_MOVE = 0.02
LEAST_CONTROL = 0.001
"""Of AdamW without one of its parts."""


class Deviations(TypedDict):
    """The largest difference of all weights from the reference."""

    deviation: float
    torch_deviation: float
    moved: float
    control_adam: float
    control_fewer: float


class CompiledDeviations(Deviations):
    """The same, and whether the kernel was compiled with the package."""

    compiled_ahead: bool


def compare(make: Make, device: str = "cpu") -> Deviations:
    """Return how far the weights of an optimiser are from the reference after four steps, the largest of all values.

    `torch_deviation` is that of torch's own AdamW in float32. Controls: weight decay that goes through the gradient
    (Adam in place of AdamW), and one step fewer.
    """
    torch = importlib.import_module("torch")
    generator = torch.Generator().manual_seed(seeding.seed_of_run())
    start = [torch.randn(shape, generator=generator) for shape in _SHAPES]
    gradients = [
        [torch.randn(shape, generator=generator) for shape in _SHAPES] for _ in range(_STEPS)
    ]
    adamw, single, double = torch.optim.AdamW, torch.float32, torch.float64
    reference = _weights(adamw, start, gradients, device, double)

    def apart(found: Sequence[Any]) -> float:
        return max(
            float((one - other).abs().max()) for one, other in zip(found, reference, strict=True)
        )

    return {
        "deviation": apart(_weights(make, start, gradients, device, single)),
        "torch_deviation": apart(_weights(adamw, start, gradients, device, single)),
        "moved": apart([tensor.double() for tensor in start]),
        "control_adam": apart(_weights(torch.optim.Adam, start, gradients, device, double)),
        "control_fewer": apart(_weights(adamw, start, gradients[:-1], device, double)),
    }


def _weights(
    make: Make, start: Sequence[Any], gradients: Sequence[Sequence[Any]], device: str, dtype: Any
) -> list[Any]:
    """The weights after a step for each set of gradients, in float64 on the CPU."""
    torch = importlib.import_module("torch")
    parameters = [torch.nn.Parameter(tensor.to(device, dtype, copy=True)) for tensor in start]
    settings: Mapping[str, object] = _SETTINGS
    optimizer = make(parameters, **settings)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.to(device, dtype, copy=True)
        optimizer.step()
    return [parameter.detach().double().cpu() for parameter in parameters]
