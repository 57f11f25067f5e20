"""The check of all kernels in validate/kernels/: it measures them and names their claims.

Each kernel is a file there. Several probes share this module (SHARED_FILES in checks/__init__.py).
"""

from validate.kernels.judge import judge
from validate.kernels.runner import measure
from validate.next_steps import pin

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
_TORCH = (
    "look by `docker run --rm IMAGE env` for NVIDIA_TF32_OVERRIDE and "
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, and unset them; if they are not set, name an image of "
    "another torch or CUDA, as this torch computes wrongly on this GPU"
)
NEXT_STEPS = {
    "numerics/conv-fp32": _TORCH,
    "numerics/gemm-fp32": _TORCH,
    "numerics/svd-fp32": _TORCH,
    "numerics/tf32-switch": _TORCH,
    "attention": f"{pin('a release of the attention package that was made for this torch and GPU')}"
    "; until then, train with another attention (`attn_implementation` of transformers); if the "
    "kernel is one of torch's own (sdpa-*), name an image of another torch",
    "bitsandbytes": f"unset BNB_CUDA_VERSION, or "
    f"{pin('a bitsandbytes release with code for this GPU and CUDA')}",
    "triton/jit": "unset TRITON_INTERPRET and other TRITON_* variables; if there are none, "
    f"{pin('the triton release that was made for this torch and knows this GPU')}",
    "liger": f"{pin('another release of liger-kernel')}; until then, train without Liger "
    "(`use_liger_kernel=False`)",
    "compile/fullgraph": "unset the TORCHDYNAMO_*, TORCH_COMPILE_* and TRITON_* variables of the "
    "image; if there are none, name an image of another torch, or train without torch.compile",
    "fp8": f"{pin('the torchao release that was made for this torch')}; until then, do not train "
    "in FP8 in this image",
}
