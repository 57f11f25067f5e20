"""The check of all kernels in validate/kernels/: it measures them and names their claims.

Each kernel is a file there. Several probes share this module (SHARED_FILES in checks/__init__.py).
"""

from validate.kernels.judge import judge
from validate.kernels.runner import measure

__all__ = ["CLAIMS", "measure"]

CLAIMS = {
    # The subjects of numerics stand one by one, because recorded evidence from before 2026-11-29
    # also has numerics/cudnn, which has another judge.
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
