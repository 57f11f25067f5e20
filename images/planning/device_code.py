"""What device code each library has by design, as data: each row with its reason and where it was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from validate.binaries.kernel_states import KernelByDesign

if TYPE_CHECKING:
    from validate.checks.static.devicecode import CodeGap

_NEVER_OLDER = 999
KERNELS_BY_DESIGN: Mapping[str, Sequence[KernelByDesign]] = {
    "torch": (
        {
            "kernels": "*vectorized_elementwise_kernelILi8E*St5arrayIPcLm*EELb1EEEvi*",
            "needed": [[100, 109]],
            "reason": "sm_10x alone works on 128 bytes a thread, from torch 2.14 on (ATen/native/cuda/CUDALoops.cuh)",
        },
        {
            "kernels": "*vectorized_elementwise_kernelILi8E*",
            "needed": [[90, 109]],
            "reason": "vectors of eight are used on sm_90 and sm_100 alone (ATen/native/cuda/CUDALoops.cuh)",
        },
        {
            "kernels": "*fmha_cutlass*_sm70*",
            "needed": [[70, 74]],
            "reason": "memory-efficient attention has variants of its own for sm_70 and sm_75",
        },
        {"kernels": "*pytorch_flash*", "needed": [[80, _NEVER_OLDER]], "reason": "FlashAttention 2 begins at sm_80"},
        {"kernels": "*m16n8k16*", "needed": [[80, _NEVER_OLDER]], "reason": "the int4 product needs sm_80's mma"},
        {
            "kernels": "*nvshmem_extension*tile_reduce*",
            "needed": [[90, _NEVER_OLDER]],
            "reason": "NVSHMEM's tile operations begin at sm_90",
        },
        {
            "kernels": "*tma_scatter_*kernel*",
            "needed": [[90, _NEVER_OLDER]],
            "reason": "the tensor memory accelerator begins at sm_90 (ATen/native/cuda/TMAScatterAdd.cu)",
        },
        {
            "kernels": "*_assert_async_cuda_kernel*",
            "needed": [[0, 99]],
            "reason": "whole, though short: nvcc copies its message in a loop from Blackwell on (read in torch 2.15.0)",
        },
    ),
    "bitsandbytes": (
        {
            "kernels": "*gemm_4bit_sm80_*",
            "needed": [[80, 80], [87, 87], [90, 119]],
            "reason": "its largest tiles need more shared memory than sm_86, sm_89 and sm_120 have",
        },
    ),
    "xformers": (
        {
            "kernels": "*prepare_varlen_num_blocks*",
            "needed": [[80, _NEVER_OLDER]],
            "reason": "it serves FlashAttention 3, which begins at sm_80",
        },
        {
            "kernels": "*cub*EmptyKernel*",
            "needed": [[80, _NEVER_OLDER]],
            "reason": "CUB reads its attributes and never launches it; FlashAttention 3 begins at sm_80",
        },
        *(
            KernelByDesign(
                kernels=f"*5flash{len(kernel)}{kernel}*",
                needed=[[90, 90]],
                reason="FlashAttention 3 as of xformers 0.0.29 is code for sm_90a, which runs on sm_90 alone",
            )
            for kernel in ("compute_attn_ws", "compute_attn_ws_fp8", "combine_attn_seqk_parallel")
        ),
    ),
}
"""Kernels that are empty, or left out, on archs where their library never calls them: `needed` are the archs, from and
to, where they must be real. The first row that matches is taken. Read from the wheels of torch 2.5.1 to 2.15.0 and what
goes with them."""
KNOWN_GAPS: Mapping[str, Sequence[CodeGap]] = {
    "torch": (
        {
            "cuda": 13,
            "file": "torch/lib/libtorch_cuda_linalg.so",
            "archs": [75],
            "reason": "PyTorch builds MAGMA for CUDA 13 from sm_80 on: torch.linalg routines that use it fail there",
        },
    ),
}
"""Archs that upstream claims and one of its files lacks. Said in the verdict, as a warning."""
CUDA_DEVICE_LIBRARIES: Sequence[str] = (
    "libcublas",
    "libcublasLt",
    "libcudnn_ops",
    "libcudnn_cnn",
    "libcudnn_adv",
    "libcudnn_engines_precompiled",
    "libcurand",
    "libcusparse",
    "libcusolver",
    "libnccl",
)
"""NVIDIA's libraries that serve every arch of their release. libcufft keeps its kernels in a format of its own, and
libcusparseLt begins at sm_80."""
NO_CUDA_LIBRARY_FROM: Mapping[str, str] = {"libcurand": "2.15"}
"""The torch from which on nothing requires one of them: read from the locks of torch 2.14.1 and 2.15.0."""
TORCHAO_DEVICE_CODE: Mapping[str, Sequence[int]] = {
    "_C": (80, 86),
    "_C_cutlass_90a": (90,),
    "_C_mxfp8": (100,),
}
"""torchao's libraries and the archs each is made for, read from 0.11.0, 0.13.0 and 0.18.0: its kernels are extras, each
for some GPUs."""
