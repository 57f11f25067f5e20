"""bitsandbytes: bitsandbytes' LLM.int8(): products of whole numbers, and the row-wise quantiser."""

import importlib

from validate.kernels import Case, Observed, SeededRandom
from validate.kernels._names import BNB_INT8_ROWS, EAGER, INT8_PRODUCT
from validate.kernels.bitsandbytes_nf4 import around, of_bitsandbytes


def _case(rng: SeededRandom) -> Case:
    functional = importlib.import_module("bitsandbytes.functional")
    return Case(
        dtype="int8",
        inputs={
            name: rng.integers(-127, 128, n, 260, dtype="int8")
            for name, n in (("left", 77), ("right", 132))
        },
        run=lambda left, right: functional.int8_linear_matmul(left, right),
        plain=lambda left, right: left @ right.T,
    )


def _observe(rng: SeededRandom) -> Observed:
    functional = importlib.import_module("bitsandbytes.functional")
    values = rng.normal(1024, 1024).half()
    codes, scales, _ = functional.int8_vectorwise_quant(values.to(rng.device))
    decoded = (codes.float() * scales.float().view(-1, 1) / 127).cpu()
    control = {
        "unquantised": 0.0,
        "codes off by one": float((decoded + 0.02 - values.float()).abs().mean()),
    }
    value = float((decoded - values.float()).abs().mean())
    return {"figures": {"mean error": {"value": value, "controls": control}}}


KERNEL = of_bitsandbytes(
    statement="int8 products are exact, and quantising rows to int8 errs as much as rounding must",
    cases={"77x260x132": _case},
    tolerance={"int8": 0.0},
    observe=_observe,
    # 40 samples of N(0,1) in rows of 1024, rounded in plain torch.
    figures={"mean error": around(0.006774, 2.03e-5)},
    expected_kernels={"quantiser": BNB_INT8_ROWS, "product": INT8_PRODUCT},
    aside_kernels=(EAGER,),
)
