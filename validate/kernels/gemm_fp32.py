"""The kernel of float32 matrix products, at the precision that users get by default.

It also has what all files of the check numerics share.
"""

from functools import partial
from typing import Any

from validate.kernels import Case, Kernel, SeededRandom

of_float32 = partial(
    Kernel, check="numerics", probe="gpu.numerics", package="torch", tolerance={"float32": 1e-5}
)
"""float32 stays below 1e-6 here; TF32, which keeps 10 bits, is at 3e-4."""


def _product(left: Any, right: Any) -> Any:
    """Multiply two matrices."""
    return left @ right


def _case(rows: int, inner: int, columns: int, rng: SeededRandom) -> Case:
    """Return a product of matrices of these sizes. The reference differs only in its dtype."""
    inputs = {"left": rng.normal(rows, inner), "right": rng.normal(inner, columns)}
    return Case(
        dtype="float32", inputs=inputs, run=_product, plain=_product, grad_inputs=("left", "right")
    )


KERNEL = of_float32(
    statement="float32 products are float32: within 1e-5 of float64",
    cases={
        "511x1023x769": partial(_case, 511, 1023, 769),
        "33x4099x65": partial(_case, 33, 4099, 65),
    },
    libraries=(r"libcublas(Lt)?\.so",),
)
