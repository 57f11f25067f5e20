"""The kernel of Liger's linear layer fused with cross entropy, which never holds all logits."""

import importlib
from functools import partial
from typing import Any

from validate.kernels import Case, SeededRandom
from validate.kernels._names import LIGER_CROSS_ENTROPY
from validate.kernels.liger_rms_norm import of_liger

_TOKENS, _WIDTH, _VOCABULARY = 123, 96, 1543
_IGNORED = -100
"""The target of tokens that do not count."""


def _run(x: Any, weight: Any, target: Any) -> Any:
    """Return the loss. Some versions of Liger return other results beside it."""
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    result = module.LigerFusedLinearCrossEntropyFunction.apply(x, weight, target)
    return result[0] if isinstance(result, tuple) else result


def _plain(x: Any, weight: Any, target: Any) -> Any:
    """Return the loss by plain torch."""
    functional = importlib.import_module("torch.nn.functional")
    return functional.cross_entropy(x @ weight.T, target, ignore_index=_IGNORED)


def _case(dtype: str, rng: SeededRandom) -> Case:
    """Return the loss of some tokens, of which every seventh is ignored."""
    target = rng.integers(0, _VOCABULARY, _TOKENS)
    target[::7] = _IGNORED
    inputs = {
        "x": rng.normal(_TOKENS, _WIDTH),
        "weight": rng.normal(_VOCABULARY, _WIDTH, deviation=_WIDTH**-0.5),
        "target": target,
    }
    return Case(dtype=dtype, inputs=inputs, run=_run, plain=_plain, grad_inputs=("x", "weight"))


KERNEL = of_liger(
    statement=(
        "Liger's fused linear cross entropy, forward and backward: "
        "float32 within 1e-5, bfloat16 as plain torch"
    ),
    cases={dtype: partial(_case, dtype) for dtype in ("float32", "bfloat16")},
    expected_kernels={"loss": LIGER_CROSS_ENTROPY},
)
