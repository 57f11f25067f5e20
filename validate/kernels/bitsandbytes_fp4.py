"""The kernel of bitsandbytes' quantiser to 4-bit FP4."""

from validate.kernels import Observed, SeededRandom
from validate.kernels._names import BNB_QUANTISE
from validate.kernels.bitsandbytes_nf4 import bounds_around, mean_error, of_bitsandbytes


def _observe(rng: SeededRandom) -> Observed:
    """Return the mean error of quantising normal numbers to FP4 and back.

    Two controls must be noticed as wrong: no error at all, and the error of NF4.
    """
    values = rng.normal(1024, 1024).float()
    controls = {"unquantised": 0.0, "NF4 in its place": mean_error(rng, values, "nf4", 64)}
    error = mean_error(rng, values, "fp4", 64)
    return {"figures": {"mean error": {"value": error, "controls": controls}}}


KERNEL = of_bitsandbytes(
    statement="FP4 errs as much as bitsandbytes says",
    observe=_observe,
    # bitsandbytes' own mean (its tests/test_functional.py); sigma of 40 samples of its CPU code.
    figures={"mean error": bounds_around(0.096545, 1.16e-4)},
    expected_kernels={"quantiser": BNB_QUANTISE},
)
