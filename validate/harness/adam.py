"""Compare an AdamW that a package compiles with torch's AdamW in float64, on the same gradients."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from validate.harness import seeding

_SETTINGS = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
_STEPS = 4
_SHAPES = ((1,), (37, 29), (4099,))
"""Their sizes are no multiples of a vector's width, so that the ends of vectorised loops run, too.
"""

MakeOptimizer = Callable[..., Any]
"""A function or class that gets parameters and the settings of AdamW, and returns an optimiser."""


LARGEST_DEVIATION = 2e-6
"""Of a correct optimiser in float32. Rounding is 5e-7 and less: weights are 1 to 4, four steps
0.01."""
LEAST_MOVE = 0.02
"""How far the steps must move the weights."""
LEAST_CONTROL = 0.001
"""How far an AdamW that lacks one of its parts must be off."""


class Deviations(TypedDict):
    """The largest differences of any weight from torch's AdamW in float64."""

    deviation: float  # of the optimiser under test
    torch_deviation: float  # of torch's AdamW in float32
    moved: float  # of the weights before the first step
    control_adam: float  # of Adam, where weight decay goes through the gradient
    control_fewer: float  # of AdamW after one step fewer


class CompiledDeviations(Deviations):
    """Deviations of an optimiser, and whether its kernel was compiled with the package."""

    compiled_ahead: bool


def compare(make_optimizer: MakeOptimizer, device: str = "cpu") -> Deviations:
    """Take four steps with an optimiser, and return how far its weights are from torch's AdamW.

    `make_optimizer` gets the parameters and the settings of AdamW, and returns the optimiser.
    torch's AdamW computes in float64, from the same random start and gradients. Each deviation is
    the largest difference of any weight. Two optimisers that lack a part of AdamW are measured as
    well (controls): their deviation must be larger.
    """
    torch = importlib.import_module("torch")
    generator = torch.Generator().manual_seed(seeding.seed_of_run())

    def draw_tensors() -> list[Any]:
        return [torch.randn(shape, generator=generator) for shape in _SHAPES]

    start = draw_tensors()
    gradients = [draw_tensors() for _ in range(_STEPS)]
    adamw = torch.optim.AdamW
    reference = _take_steps(adamw, start, gradients, device, torch.float64)

    result = _take_steps(make_optimizer, start, gradients, device, torch.float32)
    # torch's own deviation in float32 is only for people who read the evidence.
    torch_result = _take_steps(adamw, start, gradients, device, torch.float32)
    start_in_double = [tensor.double() for tensor in start]

    # The controls: without AdamW's decoupled weight decay, and without the last step.
    of_adam = _take_steps(torch.optim.Adam, start, gradients, device, torch.float64)
    one_step_fewer = _take_steps(adamw, start, gradients[:-1], device, torch.float64)
    return {
        "deviation": _largest_difference(result, reference),
        "torch_deviation": _largest_difference(torch_result, reference),
        "moved": _largest_difference(start_in_double, reference),
        "control_adam": _largest_difference(of_adam, reference),
        "control_fewer": _largest_difference(one_step_fewer, reference),
    }


def _take_steps(
    make_optimizer: MakeOptimizer,
    start: Sequence[Any],
    gradients: Sequence[Sequence[Any]],
    device: str,
    dtype: Any,
) -> list[Any]:
    """Take one step of an optimiser for each set of gradients, on `device` in `dtype`.

    `start` has the weights before the steps, a tensor for each parameter. A set of gradients has a
    tensor for each parameter as well. Returns the weights after the last step, in float64 on the
    CPU. `start` is not changed.
    """
    torch = importlib.import_module("torch")
    parameters = [torch.nn.Parameter(tensor.to(device, dtype, copy=True)) for tensor in start]
    settings: Mapping[str, object] = _SETTINGS
    optimizer = make_optimizer(parameters, **settings)
    for step_gradients in gradients:
        for parameter, gradient in zip(parameters, step_gradients, strict=True):
            parameter.grad = gradient.to(device, dtype, copy=True)
        optimizer.step()
    return [parameter.detach().double().cpu() for parameter in parameters]


def _largest_difference(weights: Sequence[Any], reference: Sequence[Any]) -> float:
    """Return the largest absolute difference of any value of two lists of tensors."""
    differences = []
    for weight, expected in zip(weights, reference, strict=True):
        differences.append(float((weight - expected).abs().max()))
    return max(differences)
