"""What CUDA kernels are called: facts of the version that brings them, each with its source. Data, no verdict.

A name proves that a kernel ran. That none of these was seen proves nothing: the next release calls it something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EAGER = (
    r"at::native::|^void \(anonymous namespace\)::(softmax_warp|elementwise_kernel)|cunn_SoftMax"
    r"|\bat_cuda_detail::|\bcub::"
)
"""Kernels of torch's operators one by one, which copy, add and normalise around every other kernel."""
PRODUCT = (
    r"^nvjet_|xmma_gemm|cutlass_\d+_\w*gemm|^(ampere|turing|volta|maxwell)_\w*gemm|gemv(2|N|T|NSP)|gemmk1|gemmSN"
    r"|splitKreduce|cublas(Lt)?::|cublasL?t?_"
)
"""Matrix products of cuBLAS, by all of its names: torch 2.5 to 2.11 on H100 and H200."""
FULL_PRECISION_PRODUCT = (
    r"nvjet_(sm\d+_)?(tst|hsh|sss|tss|hss|tsh)_|(gemm|tensorop|xmma)_(s1688|h16816|bf16_s16816|f16_s16816|bf16|f16|f32)"
)
"""Products of bfloat16, float16 and float32 inputs: t, h and s in cuBLASLt's names, as q and r are e4m3 and e5m2."""
DOUBLE_PRODUCT = r"gemm_f64|dgemm|d884gemm|nvjet_(sm\d+_)?ddd_"
"""References in float64 on the device."""


@dataclass(frozen=True, kw_only=True)
class Name:
    """What a kernel is called by a distribution from one version on, and before another."""

    pattern: str
    of: str = "torch"
    """The distribution whose version decides."""
    since: str = ""
    before: str = ""
    source: str

    def holds(self, versions: Mapping[str, str]) -> bool:
        """Whether it is the name in these versions. One that is not given excludes nothing."""
        if self.of not in versions:
            return True
        begun = not self.since or at_least(versions, self.of, self.since)
        return begun and not (self.before and at_least(versions, self.of, self.before))


def patterns(names: Sequence[Name], versions: Mapping[str, str]) -> tuple[str, ...]:
    """The patterns of the names that hold for these versions."""
    return tuple(name.pattern for name in names if name.holds(versions))


def at_least(versions: Mapping[str, str], name: str, version: str) -> bool:
    """Whether a distribution is of this version or later. One that is not given is taken for the newest."""
    return name not in versions or _numbers(versions[name]) >= _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    """2.7.1+cu126 as (2, 7, 1). A pre-release counts as its release."""
    parts = version.partition("+")[0].split(".")
    return tuple(int(digits) for part in parts if (digits := _leading_digits(part)))


def _leading_digits(part: str) -> str:
    count = next((at for at, letter in enumerate(part) if not letter.isdigit()), len(part))
    return part[:count]


H100 = "seen on an H100 and H200s with torch 2.11 (results/evidence)"

SDPA_FLASH_FORWARD = (Name(pattern=r"pytorch_flash::flash_fwd", source=f"namespace of torch's copy since 2.2; {H100}"),)
SDPA_FLASH_BACKWARD = (
    Name(pattern=r"pytorch_flash::flash_bwd", source=f"namespace of torch's copy since 2.2; {H100}"),
)
SDPA_EFFICIENT_FORWARD = (
    Name(
        pattern=r"fmha_cutlassF|PyTorchMemEffAttention::AttentionKernel",
        source=f"torch's mem_eff_attention/kernels since 2.1; {H100}",
    ),
)
SDPA_EFFICIENT_BACKWARD = (
    Name(
        pattern=r"fmha_cutlassB|PyTorchMemEffAttention::AttentionBackwardKernel",
        source=f"torch's mem_eff_attention/kernels since 2.1; {H100}",
    ),
)
SDPA_CUDNN_FORWARD = (
    Name(pattern=r"cudnn.*(sdpa|flash|fprop|mha)", source=f"cuDNN 9.10 (torch 2.8) and 9.19 (2.11) on an H100; {H100}"),
)
SDPA_CUDNN_BACKWARD = (
    Name(
        pattern=r"cudnn.*(sdpa|flash|mha).*(bprop|bwd|dgrad|backward)|cudnn.*bprop",
        source=f"cuDNN 9.10 (torch 2.8) and 9.19 (2.11) on an H100; {H100}",
    ),
)
INDUCTOR = (
    Name(
        pattern=r"^triton_$",
        before="2.6",
        source="torch 2.5.1: _inductor/config.py, triton.unique_kernel_names is off; seen on an H100",
    ),
    Name(
        pattern=r"^triton_[a-z]+_fused_",
        since="2.6",
        source=f"pytorch#136503; torch 2.7.1 and 2.11: _inductor/config.py, unique_kernel_names is on; {H100}",
    ),
)
FP8_PRODUCT = (
    Name(
        pattern=r"gemm_(e4m3|e5m2)",
        source="cuBLAS before nvjet and on Ada: sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_..., sm90_xmma_gemm_e4m3...",
    ),
    Name(
        pattern=r"nvjet_[qr]{2}[a-z]+_",
        since="2.7",
        source="cuBLAS 12.8: nvjet_qqtst_..., seen on an H100 with torch 2.8+cu128",
    ),
    Name(
        pattern=r"nvjet_sm\d+_[qr]{2}[a-z]+_",
        since="2.9",
        source=f"cuBLAS 13: nvjet_sm90_qqtst_..., nvjet_sm90_qrtst_...; {H100}",
    ),
    Name(pattern=r"^(?!.*at::native).*float8_?e[45]m[32]", source="CUTLASS of torch's row-wise scaled products"),
)
FLASH_ATTN_FORWARD = (
    # torch's own copy is in the namespace pytorch_flash: seeing that one would prove nothing here.
    Name(pattern=r"(?<!pytorch_)flash::flash_fwd", of="flash-attn", source=f"flash-attn 2: csrc/flash_attn; {H100}"),
)
FLASH_ATTN_BACKWARD = (
    Name(pattern=r"(?<!pytorch_)flash::flash_bwd", of="flash-attn", source=f"flash-attn 2: csrc/flash_attn; {H100}"),
)
_CUTE = "flash-attn-4 4.0.0b36: the DSL names a kernel after module and class (flash_attn/cute/flash_fwd_sm90.py)"
FLASH_ATTN_4_FORWARD = (Name(pattern=r"flash_attncuteflash_fwd", of="flash-attn-4", source=_CUTE),)
FLASH_ATTN_4_BACKWARD = (
    Name(pattern=r"flash_attncute(flash_bwd|sm100_hd256_2cta_fmha_backward)", of="flash-attn-4", source=_CUTE),
)
XFORMERS_CUTLASS_FORWARD = (
    Name(
        pattern=r"fmha_cutlassF",
        of="xformers",
        source="xformers 0.0.29.post1 on an H100 (cu126-torch25); 0.0.34 calls aten::_efficient_attention_forward",
    ),
)
XFORMERS_CUTLASS_BACKWARD = (
    Name(pattern=r"fmha_cutlassB", of="xformers", source="xformers 0.0.29.post1 on an H100 (cu126-torch25)"),
)
XFORMERS_FLASH_FORWARD = (
    Name(
        pattern=r"flash.*fwd",
        of="xformers",
        source="xformers 0.0.29.post1 on an H100 (cu126-torch25); 0.0.34 calls aten::_flash_attention_forward",
    ),
)
XFORMERS_FLASH_BACKWARD = (
    Name(pattern=r"flash.*bwd", of="xformers", source="xformers 0.0.29.post1 on an H100 (cu126-torch25)"),
)
BNB_QUANTISE = (
    Name(pattern=r"kQuantizeBlockwise", of="bitsandbytes", source=f"bitsandbytes: csrc/kernels.cu; {H100}"),
)
BNB_DEQUANTISE = (
    Name(
        pattern=r"kDequantizeBlockwise|gemm_4bit",
        of="bitsandbytes",
        source=f"bitsandbytes: csrc/kernels.cu (kgemm_4bit_inference_naive, gemm_4bit_simt); {H100}",
    ),
)
BNB_INT8_ROWS = (Name(pattern=r"kInt8VectorQuant", of="bitsandbytes", source=f"bitsandbytes: csrc/kernels.cu; {H100}"),)
INT8_PRODUCT = (
    Name(
        of="bitsandbytes",
        pattern=r"gemm_s8|i\d+gemm|imma|xmma_gemm_i8|igemm",
        source=f"cuBLASLt's int8: cutlass_80_tensorop_i16832gemm_s8; {H100}",
    ),
)
BNB_ADAMW_8BIT = (
    Name(
        pattern=r"kOptimizerStatic8bit2StateBlockwise",
        of="bitsandbytes",
        source=f"bitsandbytes: csrc/kernels.cu; {H100}",
    ),
)
LIGER = "liger-kernel 0.6.4 and 0.8.5"
LIGER_CROSS_ENTROPY = (
    Name(
        pattern=r"cross_entropy_kernel",
        of="liger-kernel",
        source=f"{LIGER}: ops/cross_entropy.py; {H100}",
    ),
)
LIGER_RMS_NORM_FORWARD = (
    Name(pattern=r"rms_norm_forward", of="liger-kernel", source=f"{LIGER}: ops/rms_norm.py; {H100}"),
)
LIGER_RMS_NORM_BACKWARD = (
    Name(pattern=r"rms_norm_backward", of="liger-kernel", source=f"{LIGER}: ops/rms_norm.py; {H100}"),
)
LIGER_ROPE = (Name(pattern=r"triton_rope", of="liger-kernel", source=f"{LIGER}: ops/rope.py; {H100}"),)
LIGER_SWIGLU_FORWARD = (Name(pattern=r"swiglu_forward", of="liger-kernel", source=f"{LIGER}: ops/swiglu.py; {H100}"),)
LIGER_SWIGLU_BACKWARD = (Name(pattern=r"swiglu_backward", of="liger-kernel", source=f"{LIGER}: ops/swiglu.py; {H100}"),)
OUR_MIX = (Name(pattern=r"^validate_mix", source="validate/kernels/_triton_kernels.py"),)
OUR_SOFTMAX = (Name(pattern=r"^validate_softmax", source="validate/kernels/_triton_kernels.py"),)
