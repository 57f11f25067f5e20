"""numerics to fp8: the claims of every probe of the table of kernels. A kernel is a row of that table."""

from validate.kernels.judge import judge
from validate.kernels.runner import measure

__all__ = ["CLAIMS", "measure"]

CLAIMS = {
    # Not the whole of numerics: evidence from before 2026-11-29 has numerics/cudnn, which was judged otherwise.
    "numerics/conv-fp32": judge,
    "numerics/gemm-fp32": judge,
    "numerics/svd-fp32": judge,
    "numerics/tf32-switch": judge,
    "attention": judge,
    "bitsandbytes": judge,
    "triton/jit": judge,
    "liger": judge,
    "compile/fullgraph": judge,
    "fp8": judge,
}
