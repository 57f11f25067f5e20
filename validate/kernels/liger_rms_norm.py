"""The kernel of Liger's RMSNorm, and what all files of Liger share."""

import importlib
from functools import partial
from typing import Any

from validate.kernels import RULE_T, Case, Kernel, SeededRandom, from_capability
from validate.kernels._names import LIGER_RMS_NORM_BACKWARD, LIGER_RMS_NORM_FORWARD

of_liger = partial(
    Kernel,
    check="liger",
    probe="gpu.liger",
    package="liger-kernel",
    tolerance={"float32": 1e-5, "bfloat16": RULE_T},
    gpu_obstacle=from_capability(
        8, 0, "Liger is claimed with bfloat16, which GPUs have from Ampere on"
    ),
)
_EPSILON = 1e-5


def _run(x: Any, weight: Any) -> Any:
    """Normalise as Llama does, without an offset of the weight and not in place."""
    function = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction
    return function.apply(x, weight, _EPSILON, 0.0, "llama", False)


def _plain(x: Any, weight: Any) -> Any:
    """Compute RMS norm over the last dimension in plain torch."""
    mean_square = x.pow(2).mean(-1, keepdim=True)
    return x * (mean_square + _EPSILON).rsqrt() * weight


def _case(dtype: str, rng: SeededRandom) -> Case:
    """Return a norm over rows of an odd length."""
    inputs = {"x": rng.normal(3, 41, 345), "weight": rng.normal(345)}
    return Case(dtype=dtype, inputs=inputs, run=_run, plain=_plain, grad_inputs=("x", "weight"))


KERNEL = of_liger(
    statement="Liger's RMSNorm, forward and backward: float32 within 1e-4, bfloat16 as plain torch",
    cases={dtype: partial(_case, dtype) for dtype in ("float32", "bfloat16")},
    tolerance={"float32": 1e-4, "bfloat16": RULE_T},
    expected_kernels={"forward": LIGER_RMS_NORM_FORWARD, "backward": LIGER_RMS_NORM_BACKWARD},
)
