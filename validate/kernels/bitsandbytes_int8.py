"""The kernels of bitsandbytes' LLM.int8(): int8 matrix products, and the quantiser of rows."""

import importlib

from validate.kernels import Case, Observed, SeededRandom
from validate.kernels._names import BNB_INT8_ROWS, EAGER, INT8_PRODUCT
from validate.kernels.bitsandbytes_nf4 import bounds_around, of_bitsandbytes


def _case(rng: SeededRandom) -> Case:
    """Return a case of bitsandbytes' product of int8 matrices, which must be exact.

    It is `left` times `right` transposed, as in plain torch.
    """
    functional = importlib.import_module("bitsandbytes.functional")
    inputs = {
        "left": rng.integers(-127, 128, 77, 260, dtype="int8"),
        "right": rng.integers(-127, 128, 132, 260, dtype="int8"),
    }
    # The runner passes inputs by name, and bitsandbytes has other names for them: hence a lambda.
    return Case(
        dtype="int8",
        inputs=inputs,
        run=lambda left, right: functional.int8_linear_matmul(left, right),
        plain=lambda left, right: left @ right.T,
    )


def _observe(rng: SeededRandom) -> Observed:
    """Return the mean error of quantising normal numbers row by row to int8 and back.

    It is mean |decoded - value|. Two controls must be noticed as wrong: numbers that were not
    quantised, and decoded numbers that are all a little too large.
    """
    functional = importlib.import_module("bitsandbytes.functional")
    values = rng.normal(1024, 1024).half()
    # `scales` holds the largest absolute value of each row, which became the code 127. So one code
    # stands for 1/127 of it.
    codes, scales, _ = functional.int8_vectorwise_quant(values.to(rng.device))
    row_scales = scales.float().view(-1, 1)
    decoded = (codes.float() * row_scales / 127).cpu()
    errors = decoded - values.float()

    # Codes that are all off by one would shift all numbers by 0.027 on the average (3.4 / 127). The
    # control shifts them by 0.02, which is less, so it is even harder to notice.
    shifted_errors = decoded + 0.02 - values.float()
    controls = {
        # A result without any error was not quantised.
        "unquantised": 0.0,
        "codes off by one": float(shifted_errors.abs().mean()),
    }
    mean_error = float(errors.abs().mean())
    return {"figures": {"mean error": {"value": mean_error, "controls": controls}}}


KERNEL = of_bitsandbytes(
    statement="int8 products are exact, and quantising rows to int8 errs as much as rounding must",
    cases={"77x260x132": _case},
    tolerance={"int8": 0.0},
    observe=_observe,
    # 40 samples of N(0,1) in rows of 1024, rounded in plain torch.
    figures={"mean error": bounds_around(0.006774, 2.03e-5)},
    expected_kernels={"quantiser": BNB_INT8_ROWS, "product": INT8_PRODUCT},
    aside_kernels=(EAGER,),
)
