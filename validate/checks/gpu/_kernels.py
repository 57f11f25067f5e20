"""attention to fp8: the claims of every probe of the table of kernels that has no file of its own: a kernel is a row
of that table."""

from validate.kernels.judge import judge
from validate.kernels.runner import measure

__all__ = ["CLAIMS", "measure"]

CLAIMS = dict.fromkeys(("attention", "bitsandbytes", "triton/jit", "liger", "compile/fullgraph", "fp8"), judge)
