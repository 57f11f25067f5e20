"""The check of all kernels in validate/kernels/: it measures them and names their claims.

Each kernel is a file there. Several probes share this module (SHARED_FILES in checks/__init__.py).
"""

from validate.kernels.judge import judge
from validate.kernels.runner import measure
from validate.next_steps import if_image_sets, pin

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
    f"{if_image_sets('NVIDIA_TF32_OVERRIDE or TORCH_ALLOW_TF32_CUBLAS_OVERRIDE')}; if not, take an "
    "image of another torch or CUDA, as this torch computes wrongly on this GPU"
)
_ATTENTION = (
    f"{pin('a release of {} that was made for this torch and GPU')}; until then, train with "
    "another attention (`attn_implementation` of transformers)"
)
_FLASH_ATTN = _ATTENTION.format("flash-attn")
_FLASH_ATTN_4 = _ATTENTION.format("flash-attn-4")
_XFORMERS = _ATTENTION.format("xformers")
NEXT_STEPS = {
    "numerics/conv-fp32": _TORCH,
    "numerics/gemm-fp32": _TORCH,
    "numerics/svd-fp32": _TORCH,
    "numerics/tf32-switch": _TORCH,
    "attention/flash-attn-dense": _FLASH_ATTN,
    "attention/flash-attn-varlen": _FLASH_ATTN,
    "attention/xformers-cutlass": _XFORMERS,
    "attention/xformers-flash": _XFORMERS,
    "attention/transformers-flash-attn-4": _FLASH_ATTN_4,
    "attention/flash-attn-4-dense": _FLASH_ATTN_4,
    "attention/flash-attn-4-varlen": _FLASH_ATTN_4,
    "attention/flash-attn-4-features": _FLASH_ATTN_4,
    "attention": "take an image of another torch, as this kernel is torch's own; until then, "
    "train with another attention (`attn_implementation` of transformers)",
    "bitsandbytes": f"{if_image_sets('BNB_CUDA_VERSION')}; if not, "
    f"{pin('a bitsandbytes release with code for this GPU and CUDA')}",
    "triton/jit": f"{if_image_sets('TRITON_INTERPRET or another TRITON_* variable')}; if not, "
    f"{pin('the triton release that was made for this torch and knows this GPU')}",
    "liger": f"{pin('another release of liger-kernel')}; until then, train without Liger "
    "(`use_liger_kernel=False`)",
    "compile/fullgraph": f"{if_image_sets('a TORCHDYNAMO_*, TORCH_COMPILE_* or TRITON_* variable')}"
    "; if not, take an image of another torch, or train without torch.compile",
    "fp8": f"{pin('the torchao release that was made for this torch')}; until then, do not train "
    "in FP8 in this image",
}
