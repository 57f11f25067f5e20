"""bitsandbytes: bitsandbytes' 8-bit AdamW against AdamW in float64, paged (bnb_paged_adamw8bit.py) or not."""

import importlib
from functools import partial
from typing import Any

from validate.kernels import Observed, SeededRandom
from validate.kernels._names import BNB_ADAMW_8BIT, EAGER, PRODUCT
from validate.kernels.bitsandbytes_nf4 import around, of_bitsandbytes

_SHAPE = (317, 331)
"""More than 100,000 elements: below that bitsandbytes does not page, below 4,096 it keeps 32-bit states."""
_STEPS, _RATE, _DECAY = 20, 1e-3, 1e-2
DIFFERENCE = "difference from float64"
ASIDE = (EAGER, PRODUCT, r"kOptimizer32bit|kfunc")
"""The control with 32-bit states, and what fills managed memory."""
EXPECTED = around(0.01556, 6e-5)
"""Twenty seeds with bitsandbytes 0.50.2 on an H100: 0.015546, sigma 4.9e-5. A mean over 104,927 parameters."""


def observe(rng: SeededRandom, optimizer: str) -> Observed:
    """How far twenty steps end from float64's, relative to how far they went; what the states are."""
    torch, optim = rng.torch, importlib.import_module("bitsandbytes.optim")
    start = rng.normal(*_SHAPE, deviation=0.1)
    gradients = [rng.normal(*_SHAPE, deviation=0.01) for _ in range(_STEPS)]
    wanted, _ = _trained(torch.optim.AdamW, start.clone(), gradients)
    found, states = _trained(getattr(optim, optimizer), start.float().to(rng.device), gradients)
    exact, _ = _trained(optim.AdamW32bit, start.float().to(rng.device), gradients)
    way = (wanted - start).abs().mean()

    def off(end: Any) -> float:
        return float((end.cpu().double() - wanted).abs().mean() / way)

    controls = {
        "32-bit states": off(exact),
        "no step": off(start),
        "twice the way": off(start + 2 * (wanted - start)),
    }
    return {
        "figures": {DIFFERENCE: {"value": off(found), "controls": controls}},
        "facts": {
            "states": [str(states[name].dtype) for name in ("state1", "state2")],
            "paged": bool(getattr(states["state1"], "is_paged", False)),
        },
    }


def _trained(optimizer: Any, start: Any, gradients: Any) -> tuple[Any, Any]:
    parameter = start.clone().requires_grad_(True)
    stepping = optimizer([parameter], lr=_RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=_DECAY)
    for gradient in gradients:
        parameter.grad = gradient.to(device=parameter.device, dtype=parameter.dtype)
        stepping.step()
    return parameter.detach(), stepping.state[parameter]


KERNEL = of_bitsandbytes(
    statement="8-bit AdamW keeps uint8 states and ends as near to float64 as 8 bits can",
    observe=partial(observe, optimizer="AdamW8bit"),
    figures={DIFFERENCE: EXPECTED},
    facts={"states": ["torch.uint8", "torch.uint8"], "paged": False},
    expected_kernels={"step": BNB_ADAMW_8BIT},
    aside_kernels=ASIDE,
)
