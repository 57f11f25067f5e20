"""Which kernel ran: a name that is not known fails nothing, a fallback does."""

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from tests.support import recorded
from tests.support.judging import fails, judge_claim
from validate.claims import Claim
from validate.judging import Finding, Status
from validate.kernels import expected_path, table

TABLE = table()
NEWEST = {
    "torch": "2.11.0",
    "triton": "3.6.0",
    "bitsandbytes": "0.50.2",
    "liger-kernel": "0.8.0",
    "flash-attn": "2.8.3",
}
COPY = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<...> >"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>"
UNKNOWN = "void frob::nicate_kernel<4>(float*)"


@cache
def on_an_h100() -> Mapping[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Subject -> its claim and evidence, of kernels that have a name."""
    data = recorded.data("cu130-torch211-py312-sm90/h100")
    found = {one["subject"]: one["evidence"] for record in data["records"] for one in record["measurements"]}
    claims = {claim["subject"]: claim for claim in data["claims"] if claim["tier"] == "gpu"}
    subjects = [subject for subject in TABLE if "kernels" in found.get(subject, {})]
    return {subject: (claims[subject], found[subject]) for subject in subjects}


def judged(subject: str, ran: Mapping[str, Sequence[str]], **versions: str) -> Finding:
    """A kernel of today's table, its results as recorded, and these kernels apart from plain torch's."""
    data, found = on_an_h100()[subject]
    row, evidence = TABLE[subject], copy.deepcopy(found)
    versions = {**NEWEST, **versions}
    evidence["kernels"].update(ran=ran, matching={})
    claim = Claim.from_json({**data, "expect": {**data["expect"], **expected_path(row, versions)}})
    return judge_claim(claim, evidence)


def in_every_case(subject: str, names: Sequence[str]) -> dict[str, Sequence[str]]:
    return dict.fromkeys(TABLE[subject].cases or [subject], names)


def healthy(subject: str) -> dict[str, Sequence[str]]:
    """What was recorded, as if each case had run all of it, and torch's copies beside it."""
    names = [name for found in on_an_h100()[subject][1]["kernels"]["matching"].values() for name in found]
    return in_every_case(subject, [*names, COPY])


NAMED = sorted(subject for subject in on_an_h100() if TABLE[subject].expected_kernels)


@pytest.mark.parametrize("subject", NAMED)
def test_what_ran_on_an_h100_has_a_name(subject: str) -> None:
    ran = healthy(subject)
    if subject == "bnb-int8":
        ran["77x260x132"] = ["void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_64x64_128x5_tn_align16>"]
        ran[subject] = [name for name in healthy(subject)["77x260x132"] if "kInt8" in name]
    finding = judged(subject, ran)
    assert finding.status is Status.PASS, finding.reason
    assert "no name is known" not in finding.reason


SEEN_ELSEWHERE = {
    "compile-fullgraph": ("2.5.1", ["triton_"]),
    "scaled-mm-fp8": ("2.8.0", ["nvjet_qqtst_64x64_128x16_4x1_h_bz_TNT"]),
    "torchao-float8-training": ("2.8.0", ["nvjet_qqtst_64x64_128x16_4x1_h_bz_TNT", "nvjet_qrtst_64x8_128x16_h_bz_TNT"]),
}


@pytest.mark.parametrize("subject", SEEN_ELSEWHERE)
def test_names_of_another_torch_are_known_for_it(subject: str) -> None:
    torch, names = SEEN_ELSEWHERE[subject]
    finding = judged(subject, in_every_case(subject, names), torch=torch)
    assert finding.status is Status.PASS, finding.reason
    assert "no name is known" not in finding.reason


@pytest.mark.parametrize("subject", NAMED)
def test_an_unknown_name_fails_nothing_and_is_told(subject: str) -> None:
    finding = judged(subject, in_every_case(subject, [COPY, UNKNOWN]))
    assert finding.status is Status.PASS, finding.reason
    assert "ran as frob::nicate_kernel: no name is known for " in finding.reason


FLASH, BFLOAT16 = "void pytorch_flash::flash_fwd_kernel<...>", "which is a product of unquantised numbers"
FALLBACKS: list[tuple[str, list[str], str]] = [
    ("compile-fullgraph", [COPY, SOFTMAX], "float32: no kernel of its own ran"),
    ("compile-fullgraph", [], "float32: no kernel of its own ran (none was seen)"),
    ("sdpa-flash", [COPY, SOFTMAX], "ran softmax_warp_forward, which is plain products'"),
    ("sdpa-cudnn", [FLASH], "ran pytorch_flash::flash_fwd_kernel, which is FlashAttention's"),
    ("sdpa-efficient", ["cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7"], "which is cuDNN's"),
    ("sdpa-math", [FLASH], "which is FlashAttention's"),
    ("flash-attn-dense", [FLASH, COPY], "which is torch's own FlashAttention"),
    ("scaled-mm-fp8", ["nvjet_sm90_tst_64x8_64x16_1x4_h_bz_TNT", COPY], BFLOAT16),
    ("torchao-float8-inference", ["sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4"], BFLOAT16),
    ("triton-jit", [], "int32: no kernel of its own ran"),
    ("liger-rms-norm", [COPY], "float32: no kernel of its own ran"),
    ("bnb-fp4", [COPY], "bnb-fp4: no kernel of its own ran"),
    # the control's kernel alone
    ("bnb-adamw8bit", ["void kOptimizer32bit2State<float, 0>(float*, float*)", COPY], "(seen were kOptimizer32bit2Sta"),
]


@pytest.mark.parametrize(("subject", "names", "told"), FALLBACKS, ids=lambda value: str(value)[:40])
def test_a_fallback_fails_though_its_results_are_right(subject: str, names: list[str], told: str) -> None:
    fails(judged(subject, in_every_case(subject, names)), told)


def test_a_fallback_of_one_case_is_not_hidden_by_the_others() -> None:
    ran = {**healthy("sdpa-flash"), "bfloat16 cross": [SOFTMAX]}
    assert "bfloat16 cross: ran softmax_warp_forward" in judged("sdpa-flash", ran).reason


def test_a_backward_that_nothing_ran_fails() -> None:
    forward = [name for name in healthy("sdpa-flash")["float16 causal"] if "flash_fwd" in name]
    fails(
        judged("sdpa-flash", in_every_case("sdpa-flash", forward)), "no CUDA kernel like pytorch_flash::flash_bwd ran"
    )


def test_a_pass_says_which_cases_its_versions_cannot_do() -> None:
    data, found = on_an_h100()["sdpa-cudnn"]
    claim = Claim.from_json({**data, "expect": {**data["expect"], "left_out": {"odd": "it reads past the end"}}})
    finding = judge_claim(claim, found)
    assert finding.status is Status.PASS
    assert "not claimed: it reads past the end" in finding.reason


def test_evidence_from_before_is_judged_by_its_names_as_then() -> None:
    data, found = on_an_h100()["compile-fullgraph"]
    evidence = copy.deepcopy(found)
    evidence["kernels"]["matching"] = {pattern: [] for pattern in evidence["kernels"]["matching"]}
    claim = Claim.from_json(data)
    assert judge_claim(claim, found).status is Status.PASS
    assert judge_claim(claim, evidence).status is Status.FAIL
