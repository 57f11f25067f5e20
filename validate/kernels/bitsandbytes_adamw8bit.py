"""The kernel of bitsandbytes' 8-bit AdamW, against torch's AdamW in float64.

bitsandbytes_paged_adamw8bit.py measures the paged one in the same way.
"""

import importlib
from functools import partial
from typing import Any

from validate.kernels import Observed, SeededRandom
from validate.kernels._names import BNB_ADAMW_8BIT, EAGER, PRODUCT
from validate.kernels.bitsandbytes_nf4 import bounds_around, of_bitsandbytes

_SHAPE = (317, 331)
"""More than 100,000 elements: below that bitsandbytes does not page, below 4,096 it keeps 32-bit
states."""
_STEPS, _LEARNING_RATE, _WEIGHT_DECAY = 20, 1e-3, 1e-2
DIFFERENCE = "difference from float64"
ASIDE = (EAGER, PRODUCT, r"kOptimizer32bit|kfunc")
"""Kernels of the control with 32-bit states, and those that fill managed memory."""
EXPECTED = bounds_around(0.01556, 6e-5)
"""Twenty seeds with bitsandbytes 0.50.2 on an H100: 0.015546, sigma 4.9e-5. It is a mean over
104,927 parameters."""


def observe(rng: SeededRandom, optimizer: str) -> Observed:
    """Train by an 8-bit AdamW of bitsandbytes, and return how far it ends from torch's in float64.

    The distance is relative to how far the float64 training moves the parameters. The facts are the
    dtypes of AdamW's two running means, and whether they are paged (the driver may move them to the
    host). Controls are results that must be noticed as wrong.

    optimizer: its name in bitsandbytes.optim.
    """
    torch = rng.torch
    optim = importlib.import_module("bitsandbytes.optim")
    start = rng.normal(*_SHAPE, deviation=0.1)
    gradients = [rng.normal(*_SHAPE, deviation=0.01) for _ in range(_STEPS)]

    # The parameters after all steps: exactly, with 8-bit running means, and with 32-bit ones.
    exact_end, _ = _train(torch.optim.AdamW, start.clone(), gradients)
    optimizer_class = getattr(optim, optimizer)
    end, running_means = _train(optimizer_class, start.float().to(rng.device), gradients)
    end_with_32_bits, _ = _train(optim.AdamW32bit, start.float().to(rng.device), gradients)

    exact_movement = exact_end - start
    mean_movement = exact_movement.abs().mean()

    def difference(parameters: Any) -> float:
        """Return the mean distance of parameters from the exact ones, relative to the movement."""
        distances = (parameters.cpu().double() - exact_end).abs()
        return float(distances.mean() / mean_movement)

    controls = {
        # Too exact for 8 bits.
        "32-bit states": difference(end_with_32_bits),
        "no step": difference(start),
        "twice the way": difference(start + 2 * exact_movement),
    }
    dtypes = [str(running_means[name].dtype) for name in ("state1", "state2")]
    is_paged = bool(getattr(running_means["state1"], "is_paged", False))
    return {
        "figures": {DIFFERENCE: {"value": difference(end), "controls": controls}},
        "facts": {"states": dtypes, "paged": is_paged},
    }


def _train(optimizer: Any, start: Any, gradients: Any) -> tuple[Any, Any]:
    """Take a step with each gradient, and return the parameters and the optimizer's state.

    The state of AdamW is its running means, by name. `start` is not changed.

    optimizer: a class whose constructor takes the arguments of torch.optim.AdamW.
    start: a tensor, whose device and dtype are those of the training.
    """
    parameter = start.clone().requires_grad_(True)
    stepper = optimizer(
        [parameter],
        lr=_LEARNING_RATE,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=_WEIGHT_DECAY,
    )
    for gradient in gradients:
        parameter.grad = gradient.to(device=parameter.device, dtype=parameter.dtype)
        stepper.step()
    return parameter.detach(), stepper.state[parameter]


KERNEL = of_bitsandbytes(
    statement="8-bit AdamW keeps uint8 states and ends as near to float64 as 8 bits can",
    observe=partial(observe, optimizer="AdamW8bit"),
    figures={DIFFERENCE: EXPECTED},
    facts={"states": ["torch.uint8", "torch.uint8"], "paged": False},
    expected_kernels={"step": BNB_ADAMW_8BIT},
    aside_kernels=ASIDE,
)
