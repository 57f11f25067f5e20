"""The switch of TF32: it is off by default, and the tolerance of float32 notices when it is on."""

from validate.kernels import Observed, SeededRandom, from_capability
from validate.kernels._evidence import Figure
from validate.kernels.gemm_fp32 import of_float32


def _observe(rng: SeededRandom) -> Observed:
    """Return whether TF32 is on by default, and the error of a float32 product with TF32 on.

    TF32 rounds float32 to 10 bits before a product. The same error with TF32 off is a control: it
    must be far smaller. torch's setting is restored afterwards.
    """
    matmul = rng.torch.backends.cuda.matmul
    left = rng.normal(511, 1023).float()
    right = rng.normal(1023, 769).float()
    exact = left.double() @ right.double()

    def relative_error(is_allowed: bool) -> float:
        """Multiply on the GPU with TF32 on or off, and return the error in the 2-norm."""
        matmul.allow_tf32 = is_allowed
        product = (left.to(rng.device) @ right.to(rng.device)).cpu().double()
        return float((product - exact).norm() / exact.norm())

    default = matmul.allow_tf32
    try:
        with_tf32 = relative_error(True)
        without_tf32 = relative_error(False)
    finally:
        matmul.allow_tf32 = default
    figure: Figure = {"value": with_tf32, "controls": {"TF32 off": without_tf32}}
    return {"facts": {"TF32 allowed": default}, "figures": {"error with TF32": figure}}


KERNEL = of_float32(
    statement=(
        "TF32 is off by default, and where it is asked for the tolerance of float32 products "
        "notices"
    ),
    observe=_observe,
    # 10 bits of mantissa: 2.9e-4 on an H100.
    figures={"error with TF32": (1e-4, 1e-3)},
    facts={"TF32 allowed": False},
    libraries=(r"libcublas(Lt)?\.so",),
    gpu_obstacle=from_capability(8, 0, "TF32 came with Ampere"),
)
