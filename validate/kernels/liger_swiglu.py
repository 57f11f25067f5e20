"""liger: Liger's SwiGLU, silu(a) * b."""

import importlib
from functools import partial

from validate.kernels import Case, SeededRandom
from validate.kernels._names import LIGER_SWIGLU_BACKWARD, LIGER_SWIGLU_FORWARD
from validate.kernels.liger_rms_norm import of_liger


def _case(dtype: str, rng: SeededRandom) -> Case:
    return Case(
        dtype=dtype,
        inputs={name: rng.normal(3, 41, 345) for name in "ab"},
        run=lambda a, b: importlib.import_module(
            "liger_kernel.ops.swiglu"
        ).LigerSiLUMulFunction.apply(a, b),
        plain=lambda a, b: a * a.sigmoid() * b,
        grad_inputs=("a", "b"),
    )


KERNEL = of_liger(
    statement="Liger's SwiGLU, forward and backward: float32 within 1e-5, bfloat16 as plain torch",
    cases={dtype: partial(_case, dtype) for dtype in ("float32", "bfloat16")},
    expected_kernels={"forward": LIGER_SWIGLU_FORWARD, "backward": LIGER_SWIGLU_BACKWARD},
)
