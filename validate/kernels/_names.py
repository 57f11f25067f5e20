"""The names of CUDA kernels in the versions that bring them, each with its source.

A name proves that a kernel ran. That none of these was seen proves nothing: the next release may
call it something else.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EAGER = (
    r"at::native::|^void \(anonymous namespace\)::(softmax_warp|elementwise_kernel)|cunn_SoftMax"
    r"|\bat_cuda_detail::|\bcub::"
)
"""Kernels of torch's single operators, which copy, add and normalise around every other kernel."""
PRODUCT = (
    r"^nvjet_|xmma_gemm|cutlass_\d+_\w*gemm|^(ampere|turing|volta|maxwell)_\w*gemm"
    r"|gemv(2|N|T|NSP)|gemmk1|gemmSN"
    r"|splitKreduce|cublas(Lt)?::|cublasL?t?_"
)
"""Matrix products of cuBLAS, by all of its names: torch 2.5 to 2.11 on H100 and H200."""
FULL_PRECISION_PRODUCT = (
    r"nvjet_(sm\d+_)?(tst|hsh|sss|tss|hss|tsh)_"
    r"|(gemm|tensorop|xmma)_(s1688|h16816|bf16_s16816|f16_s16816|bf16|f16|f32)"
)
"""Products of bfloat16, float16 and float32 inputs: t, h and s in cuBLASLt's names, as q and r are
e4m3 and e5m2."""
DOUBLE_PRODUCT = r"gemm_f64|dgemm|d884gemm|nvjet_(sm\d+_)?ddd_"
"""Products in float64, of references that are computed on the device."""


@dataclass(frozen=True)
class Name:
    """A pattern of a CUDA kernel's name, and the versions of a distribution that use this name."""

    pattern: str
    source: str
    distribution: str = "torch"
    """Its version decides whether the name is used."""
    since: str = "0"
    before: str = "999"


def patterns(names: Sequence[Name], versions: Mapping[str, str]) -> tuple[str, ...]:
    """Return the patterns of the names that these versions use.

    versions: distribution -> version. If the distribution is not among them, the name is returned.
    """
    used = []
    for name in names:
        version = versions.get(name.distribution, name.since)
        if _read_numbers(name.since) <= _read_numbers(version) < _read_numbers(name.before):
            used.append(name.pattern)
    return tuple(used)


def at_least(versions: Mapping[str, str], name: str, version: str) -> bool:
    """Return whether a distribution has this version or a later one.

    A distribution that is not in `versions` counts as the newest.
    """
    return name not in versions or _read_numbers(versions[name]) >= _read_numbers(version)


def _read_numbers(version: str) -> tuple[int, ...]:
    """Return 2.7.1+cu126 as (2, 7, 1). A pre-release counts as its release."""
    public_version = version.partition("+")[0]
    return tuple(map(int, re.findall(r"(?:^|\.)(\d+)", public_version)))


H100 = "seen on an H100 and H200s with torch 2.11 (results/evidence)"

_NAMESPACE = f"namespace of torch's copy since 2.2; {H100}"
SDPA_FLASH_FORWARD = (Name(r"pytorch_flash::flash_fwd", _NAMESPACE),)
SDPA_FLASH_BACKWARD = (Name(r"pytorch_flash::flash_bwd", _NAMESPACE),)
_EFFICIENT = f"torch's mem_eff_attention/kernels since 2.1; {H100}"
SDPA_EFFICIENT_FORWARD = (
    Name(r"fmha_cutlassF|PyTorchMemEffAttention::AttentionKernel", _EFFICIENT),
)
SDPA_EFFICIENT_BACKWARD = (
    Name(r"fmha_cutlassB|PyTorchMemEffAttention::AttentionBackwardKernel", _EFFICIENT),
)
_CUDNN = f"cuDNN 9.10 (torch 2.8) and 9.19 (2.11) on an H100; {H100}"
SDPA_CUDNN_FORWARD = (Name(r"cudnn.*(sdpa|flash|fprop|mha)", _CUDNN),)
SDPA_CUDNN_BACKWARD = (
    Name(r"cudnn.*(sdpa|flash|mha).*(bprop|bwd|dgrad|backward)|cudnn.*bprop", _CUDNN),
)
INDUCTOR = (
    Name(
        r"^triton_$",
        "torch 2.5.1: _inductor/config.py, triton.unique_kernel_names is off; seen on an H100",
        before="2.6",
    ),
    Name(
        r"^triton_[a-z]+_fused_",
        "pytorch#136503; torch 2.7.1 and 2.11: _inductor/config.py, unique_kernel_names is on; "
        f"{H100}",
        since="2.6",
    ),
)
FP8_PRODUCT = (
    Name(
        r"gemm_(e4m3|e5m2)",
        "cuBLAS before nvjet and on Ada: sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_..., "
        "sm90_xmma_gemm_e4m3...",
    ),
    Name(
        r"nvjet_[qr]{2}[a-z]+_",
        "cuBLAS 12.8: nvjet_qqtst_..., seen on an H100 with torch 2.8+cu128",
        since="2.7",
    ),
    Name(
        r"nvjet_sm\d+_[qr]{2}[a-z]+_",
        f"cuBLAS 13: nvjet_sm90_qqtst_..., nvjet_sm90_qrtst_...; {H100}",
        since="2.9",
    ),
    Name(r"^(?!.*at::native).*float8_?e[45]m[32]", "CUTLASS of torch's row-wise scaled products"),
)
# torch's own copy is in the namespace pytorch_flash: seeing that one would prove nothing here.
_FLASH_ATTN = f"flash-attn 2: csrc/flash_attn; {H100}"
FLASH_ATTN_FORWARD = (
    Name(r"(?<!pytorch_)flash::flash_fwd", _FLASH_ATTN, distribution="flash-attn"),
)
FLASH_ATTN_BACKWARD = (
    Name(r"(?<!pytorch_)flash::flash_bwd", _FLASH_ATTN, distribution="flash-attn"),
)
_CUTE = (
    "flash-attn-4 4.0.0b36: the DSL names a kernel after module and class "
    "(flash_attn/cute/flash_fwd_sm90.py)"
)
FLASH_ATTN_4_FORWARD = (Name(r"flash_attncuteflash_fwd", _CUTE, distribution="flash-attn-4"),)
FLASH_ATTN_4_BACKWARD = (
    Name(
        r"flash_attncute(flash_bwd|sm100_hd256_2cta_fmha_backward)",
        _CUTE,
        distribution="flash-attn-4",
    ),
)
_XFORMERS = "xformers 0.0.29.post1 on an H100 (cu126-torch25); 0.0.34 calls aten's attention"
XFORMERS_CUTLASS_FORWARD = (Name(r"fmha_cutlassF", _XFORMERS, distribution="xformers"),)
XFORMERS_CUTLASS_BACKWARD = (Name(r"fmha_cutlassB", _XFORMERS, distribution="xformers"),)
XFORMERS_FLASH_FORWARD = (Name(r"flash.*fwd", _XFORMERS, distribution="xformers"),)
XFORMERS_FLASH_BACKWARD = (Name(r"flash.*bwd", _XFORMERS, distribution="xformers"),)
_BNB = f"bitsandbytes: csrc/kernels.cu; {H100}"
BNB_QUANTISE = (Name(r"kQuantizeBlockwise", _BNB, distribution="bitsandbytes"),)
# kgemm_4bit_inference_naive, gemm_4bit_simt
BNB_DEQUANTISE = (Name(r"kDequantizeBlockwise|gemm_4bit", _BNB, distribution="bitsandbytes"),)
BNB_INT8_ROWS = (Name(r"kInt8VectorQuant", _BNB, distribution="bitsandbytes"),)
_INT8 = f"cuBLASLt's int8: cutlass_80_tensorop_i16832gemm_s8; {H100}"
INT8_PRODUCT = (
    Name(r"gemm_s8|i\d+gemm|imma|xmma_gemm_i8|igemm", _INT8, distribution="bitsandbytes"),
)
BNB_ADAMW_8BIT = (Name(r"kOptimizerStatic8bit2StateBlockwise", _BNB, distribution="bitsandbytes"),)
LIGER = "liger-kernel 0.6.4 and 0.8.5"
LIGER_CROSS_ENTROPY = (
    Name(
        r"cross_entropy_kernel",
        f"{LIGER}: ops/cross_entropy.py; {H100}",
        distribution="liger-kernel",
    ),
)
LIGER_RMS_NORM_FORWARD = (
    Name(r"rms_norm_forward", f"{LIGER}: ops/rms_norm.py; {H100}", distribution="liger-kernel"),
)
LIGER_RMS_NORM_BACKWARD = (
    Name(r"rms_norm_backward", f"{LIGER}: ops/rms_norm.py; {H100}", distribution="liger-kernel"),
)
LIGER_ROPE = (Name(r"triton_rope", f"{LIGER}: ops/rope.py; {H100}", distribution="liger-kernel"),)
LIGER_SWIGLU_FORWARD = (
    Name(r"swiglu_forward", f"{LIGER}: ops/swiglu.py; {H100}", distribution="liger-kernel"),
)
LIGER_SWIGLU_BACKWARD = (
    Name(r"swiglu_backward", f"{LIGER}: ops/swiglu.py; {H100}", distribution="liger-kernel"),
)
OUR_MIX = (Name(r"^validate_mix", "validate/kernels/_triton_kernels.py"),)
OUR_SOFTMAX = (Name(r"^validate_softmax", "validate/kernels/_triton_kernels.py"),)
