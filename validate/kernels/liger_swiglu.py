"""The kernel of Liger's SwiGLU, silu(a) * b."""

import importlib
from functools import partial
from typing import Any

from validate.kernels import Case, SeededRandom
from validate.kernels._names import LIGER_SWIGLU_BACKWARD, LIGER_SWIGLU_FORWARD
from validate.kernels.liger_rms_norm import of_liger


def _run(a: Any, b: Any) -> Any:
    """Compute silu(a) * b by Liger."""
    function = importlib.import_module("liger_kernel.ops.swiglu").LigerSiLUMulFunction
    return function.apply(a, b)


def _plain(a: Any, b: Any) -> Any:
    """Compute silu(a) * b by plain torch."""
    return a * a.sigmoid() * b


def _case(dtype: str, rng: SeededRandom) -> Case:
    """Return a SwiGLU over rows of an odd length."""
    inputs = {"a": rng.normal(3, 41, 345), "b": rng.normal(3, 41, 345)}
    return Case(dtype=dtype, inputs=inputs, run=_run, plain=_plain, grad_inputs=("a", "b"))


KERNEL = of_liger(
    statement="Liger's SwiGLU, forward and backward: float32 within 1e-5, bfloat16 as plain torch",
    cases={dtype: partial(_case, dtype) for dtype in ("float32", "bfloat16")},
    expected_kernels={"forward": LIGER_SWIGLU_FORWARD, "backward": LIGER_SWIGLU_BACKWARD},
)
