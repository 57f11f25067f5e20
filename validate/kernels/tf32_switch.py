"""numerics: TF32 is off until it is asked for, and does something then: so the float32 tolerance can tell them
apart."""

from validate.kernels import Observed, SeededRandom, from_capability
from validate.kernels._evidence import Figure
from validate.kernels.gemm_fp32 import of_float32


def _observe(rng: SeededRandom) -> Observed:
    matmul = rng.torch.backends.cuda.matmul
    left, right = rng.normal(511, 1023).float(), rng.normal(1023, 769).float()
    wanted = left.double() @ right.double()

    def error(allowed: bool) -> float:
        matmul.allow_tf32 = allowed
        found = (left.to(rng.device) @ right.to(rng.device)).cpu().double()
        return float((found - wanted).norm() / wanted.norm())

    before = matmul.allow_tf32
    try:
        figure: Figure = {"value": error(True), "controls": {"TF32 off": error(False)}}
    finally:
        matmul.allow_tf32 = before
    return {"facts": {"TF32 allowed": before}, "figures": {"error with TF32": figure}}


KERNEL = of_float32(
    statement="TF32 is off by default, and where it is asked for the tolerance of float32 products notices",
    observe=_observe,
    # 10 bits of mantissa: 2.9e-4 on an H100.
    figures={"error with TF32": (1e-4, 1e-3)},
    facts={"TF32 allowed": False},
    libraries=(r"libcublas(Lt)?\.so",),
    supports=from_capability(8, 0, "TF32 came with Ampere"),
)
