"""Judges of the gpu tier on mutated evidence: what a real run recorded, one fault at a time."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from tests.support import recorded
from tests.support.judging import fails, judge_claim, spoiled, wrong
from validate.claims import Claim
from validate.judging import Finding, Status
from validate.kernels import expected_path, table

Facts = dict[str, Any]


@cache
def run_of(name: str) -> Facts:
    return recorded.data(name)


def h100(subject: str = "") -> Facts:
    """The run that has the subject: one image's, but for xformers, whose wheels are for CUDA 12."""
    return run_of(
        "cu126-torch27/h100" if subject.startswith("xformers") else "cu130-torch211-py312-sm90/h100"
    )


def claim_of(subject: str, **expect: Any) -> Claim:
    (data,) = (
        claim
        for claim in h100(subject)["claims"]
        if claim["subject"] == subject and claim["tier"] == "gpu"
    )
    claim = Claim.from_json(data)
    return Claim.from_json({**data, "expect": {**claim.expect, **expect}})


def evidence_of(subject: str) -> Facts:
    claim = claim_of(subject)
    (record,) = (record for record in h100(subject)["records"] if record["probe"] == claim.probe)
    (found,) = (found for found in record["measurements"] if found["subject"] == subject)
    evidence: Facts = found["evidence"]
    return evidence


def judged(subject: str, path: str = "", value: Any = dict, **expect: Any) -> Finding:
    return judge_claim(claim_of(subject, **expect), spoiled(evidence_of(subject), path, value))


DENSE = "flash-attn-dense"
CASE = "cases|dim 64 causal"
FIGURE = "observed|figures|mean error"
A100 = [{"name": "NVIDIA A100", "capability": [8, 0], "memory": 1}]
WRONG: list[tuple[str, str, Any, str]] = [
    (
        DENSE,
        "cases",
        lambda all_: {n: {**one, "dtype": "float16"} for n, one in all_.items()},
        "was run in bfloat16",
    ),
    (DENSE, CASE, lambda case: {**case, "outputs": {}, "controls": {"x": {}}}, "gave no result"),
    # torch's own kernel or library in its place
    (DENSE, "kernels|matching", lambda seen: dict.fromkeys(seen), "no CUDA kernel like"),
    (DENSE, "libraries", lambda mapped: dict.fromkeys(mapped), "no library like"),
    (
        "gpus",
        "",
        lambda e: {**e, "cuda": {"gpus": []}, "torch": {"gpus": []}},
        "host injected 1 GPUs, 0 are seen",
    ),
    ("gpus", "cuda|gpus", lambda gpus: gpus * 2, "injected 1 GPUs, 2 are seen"),
    (
        "gpus",
        "",
        lambda e: {**e, "cuda": {"gpus": A100}, "torch": {"gpus": A100}},
        "GPU 0 is NVIDIA A100 (8.0), the host says NVIDIA H100 80GB HBM3 (9.0)",
    ),
    (
        "gpus",
        "libcuda",
        lambda files: [*files, "/opt/libcuda.so.1"],
        "2 driver libraries are loaded",
    ),
    # memory of bfloat16, and a bound that tells nothing
    (
        "weights",
        "memory",
        lambda m: {**m, "quantised": m["bfloat16"]},
        "bytes of GPU memory, at most",
    ),
    ("weights", "memory", lambda m: {**m, "bfloat16": m["quantised"]}, "control: bfloat16 takes"),
    *(
        (key, *change, told)
        for key, told, made in wrong("gpu", case=CASE, figure=FIGURE)
        for change in (made or {}).items()
    ),
]


@pytest.mark.parametrize("subject", sorted({row[0] for row in WRONG}))
def test_what_was_recorded_passes(subject: str) -> None:
    assert judged(subject).status is Status.PASS


@pytest.mark.parametrize(
    ("subject", "path", "value", "told"), WRONG, ids=[f"{row[0]}-{row[3]}" for row in WRONG]
)
def test_one_fault_fails_and_is_named(subject: str, path: str, value: Any, told: str) -> None:
    fails(judged(subject, path, value), told)


LOW = "7.5 is below 8.0"


@pytest.mark.parametrize(
    ("subject", "path", "value", "expect", "status", "told"),
    [
        # without a profiler right numbers prove nothing
        (DENSE, "kernels|works", False, {}, Status.UNPROVEN, "profiler"),
        # a gate is the host's to open; where it knows no capability, the GPU's word decides
        ("scaled-mm", "", dict, {"not_applicable": LOW}, Status.NOT_APPLICABLE, LOW),
        (DENSE, "gated", LOW, {"capability": None}, Status.NOT_APPLICABLE, LOW),
        (
            "sdpa-cudnn",
            "",
            dict,
            {"left_out": {"odd": "past the end"}},
            Status.PASS,
            "not claimed: past the end",
        ),
    ],
)
def test_what_is_no_fault_is_said(
    subject: str, path: str, value: Any, expect: Facts, status: Status, told: str
) -> None:
    finding = judged(subject, path, value, **expect)
    assert finding.status is status and told in finding.reason


CUTLASS, BFLOAT16 = "xformers-cutlass", "bfloat16 cross"


def turing(evidence: Facts) -> Facts:
    cases = {**evidence["cases"], BFLOAT16: {"gated": "7.5 is below 8.0", "dtype": "bfloat16"}}
    return {**evidence, "cases": cases, "device": {**evidence["device"], "capability": [7, 5]}}


def test_a_case_that_a_gpu_cannot_do_is_left_out_of_what_is_expected_of_it() -> None:
    expected = {
        "cases": ["float16 causal"],
        "tolerance": {"float16": "T"},
        "left_out": {BFLOAT16: "7.5 is below 8.0"},
    }
    finding = judged(CUTLASS, "", turing, capability=[7, 5], **expected)
    assert finding.status is Status.PASS and "not claimed: 7.5 is below 8.0" in finding.reason
    assert judged(CUTLASS).status is Status.PASS
    assert judged(CUTLASS, f"cases|{BFLOAT16}", KeyError).status is Status.FAIL


def test_where_the_host_knows_no_capability_the_gpus_word_decides_about_a_case() -> None:
    passed = judged(CUTLASS, "", turing, capability=None)
    assert passed.status is Status.PASS
    assert "of 1 case use" in passed.reason and "not claimed: 7.5 is below 8.0" in passed.reason
    none = judged(
        CUTLASS,
        "cases",
        lambda old: {name: {"gated": "5.2 is below 6.0"} for name in old},
        capability=None,
    )
    assert none == (Status.NOT_APPLICABLE, "5.2 is below 6.0, 5.2 is below 6.0")
    fails(
        judged(CUTLASS, "", turing, capability=[7, 5]), f"{BFLOAT16}: the GPU says 7.5 is below 8.0"
    )


def test_of_gpus_that_differ_any_may_have_run_it() -> None:
    ran = judged(
        DENSE, "device|capability", [8, 9], capability=[8, 6], capabilities=[[8, 6], [8, 9]]
    )
    assert ran.status is Status.PASS
    fails(
        judged(DENSE, capability=[8, 6], capabilities=[[8, 6], [8, 9]]),
        "capability 9.0, the host has 8.6, 8.9",
    )


@pytest.mark.parametrize(
    ("reasons", "status"),
    [
        (["cutlassF: requires device with capability > (7, 0)"], Status.NOT_APPLICABLE),
        (["cutlassF: xFormers wasn't build with CUDA support"], Status.FAIL),
        (["a: requires device with capability > (7, 0)", "b: operator wasn't built"], Status.FAIL),
    ],
)
def test_a_librarys_own_reasons_are_a_gate_only_where_they_are_about_a_gpu(
    reasons: list[str], status: Status
) -> None:
    assert judged(DENSE, "declined", reasons).status is status


def test_suspects_stand_beside_what_they_cause() -> None:
    wrong = spoiled(evidence_of(DENSE), f"{CASE}|finite", False)
    finding = judge_claim(claim_of(DENSE), {**wrong, "environment": {"TRITON_INTERPRET": "1"}})
    assert "(TRITON_INTERPRET=1 is set)" in finding.reason


@pytest.mark.parametrize(
    ("gpu", "fits"), [("NVIDIA H100 80GB HBM3", True), ("NVIDIA A100-SXM4-40GB", False)]
)
def test_a_mig_slice_is_its_gpus(gpu: str, fits: bool) -> None:
    host = {"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "memory": 1}
    seen = {"gpus": [{"name": f"{gpu} MIG 1g.10gb", "capability": [9, 0], "memory": 1}]}
    inventory = {"driver": "", "gpus": [host, host]}
    found = judged("gpus", "", lambda e: {**e, "cuda": seen, "torch": seen}, inventory=inventory)
    assert (found.status is Status.PASS) is fits and (
        "is a slice of no GPU" in found.reason
    ) is not fits


def test_without_an_inventory_libcuda_and_torch_must_agree() -> None:
    assert judged("gpus", inventory=None).status is Status.PASS
    assert judged("gpus", "torch|gpus", [], inventory=None).status is Status.FAIL


TABLE = table()
NEWEST = dict.fromkeys(("torch", "triton", "bitsandbytes", "liger-kernel", "flash-attn"), "99")
COPY = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<...> >"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>"
UNKNOWN = "void frob::nicate_kernel<4>(float*)"
NAMED = [
    claim["subject"]
    for claim in h100()["claims"]
    if TABLE.get(claim["subject"], TABLE["sdpa-math"]).expected_kernels
]


def ran_as(subject: str, ran: Mapping[str, Sequence[str]], **versions: str) -> Finding:
    """A kernel of today's table, its results as recorded, and these kernels apart from plain torch's."""
    names = expected_path(TABLE[subject], {**NEWEST, **versions})
    return judged(subject, "kernels", lambda seen: {**seen, "ran": ran, "matching": {}}, **names)


def in_every_case(subject: str, names: Sequence[str]) -> dict[str, Sequence[str]]:
    return dict.fromkeys(TABLE[subject].cases or [subject], names)


def healthy(subject: str) -> dict[str, Sequence[str]]:
    """What was recorded, as if each case had run all of it, and torch's copies beside it."""
    names = [
        name for found in evidence_of(subject)["kernels"]["matching"].values() for name in found
    ]
    return in_every_case(subject, [*names, COPY])


@pytest.mark.parametrize("subject", NAMED)
def test_what_ran_on_an_h100_has_a_name_and_another_fails_nothing_and_is_told(subject: str) -> None:
    ran = healthy(subject)
    if subject == "int8":
        ran["77x260x132"] = [
            "void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_64x64_128x5_tn_align16>"
        ]
        ran[subject] = [name for name in healthy(subject)["77x260x132"] if "kInt8" in name]
    finding, other = ran_as(subject, ran), ran_as(subject, in_every_case(subject, [COPY, UNKNOWN]))
    assert (finding.status, other.status) == (Status.PASS, Status.PASS), (
        finding.reason,
        other.reason,
    )
    assert "no name is known" not in finding.reason
    assert "ran as frob::nicate_kernel: no name is known for " in other.reason


@pytest.mark.parametrize(
    ("subject", "torch", "names"),
    [
        ("fullgraph", "2.5.1", ["triton_"]),
        ("scaled-mm", "2.8.0", ["nvjet_qqtst_64x64_128x16_4x1_h_bz_TNT"]),
        (
            "torchao-training",
            "2.8.0",
            ["nvjet_qqtst_64x64_128x16_4x1_h", "nvjet_qrtst_64x8_128x16_h_bz_TNT"],
        ),
    ],
)
def test_names_of_another_torch_are_known_for_it(
    subject: str, torch: str, names: list[str]
) -> None:
    finding = ran_as(subject, in_every_case(subject, names), torch=torch)
    assert finding.status is Status.PASS and "no name is known" not in finding.reason, (
        finding.reason
    )


FLASH, UNQUANTISED = (
    "void pytorch_flash::flash_fwd_kernel<...>",
    "which is a product of unquantised numbers",
)
FALLBACKS: list[tuple[str, list[str], str]] = [
    ("fullgraph", [COPY, SOFTMAX], "float32: no kernel of its own ran"),
    ("fullgraph", [], "float32: no kernel of its own ran (none was seen)"),
    ("sdpa-flash", [COPY, SOFTMAX], "ran softmax_warp_forward, which is plain products'"),
    ("sdpa-cudnn", [FLASH], "ran pytorch_flash::flash_fwd_kernel, which is FlashAttention's"),
    (
        "sdpa-efficient",
        ["cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7"],
        "which is cuDNN's",
    ),
    ("sdpa-math", [FLASH], "which is FlashAttention's"),
    ("flash-attn-dense", [FLASH, COPY], "which is torch's own FlashAttention"),
    ("scaled-mm", ["nvjet_sm90_tst_64x8_64x16_1x4_h_bz_TNT", COPY], UNQUANTISED),
    (
        "torchao-inference",
        ["sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4"],
        UNQUANTISED,
    ),
    ("jit", [], "int32: no kernel of its own ran"),
    ("rms-norm", [COPY], "float32: no kernel of its own ran"),
    ("fp4", [COPY], "fp4: no kernel of its own ran"),
    # the control's kernel alone
    (
        "adamw8bit",
        ["void kOptimizer32bit2State<float, 0>(float*, float*)", COPY],
        "(seen were kOptimizer32bit2Sta",
    ),
]


@pytest.mark.parametrize(("subject", "names", "told"), FALLBACKS, ids=lambda value: str(value)[:40])
def test_a_fallback_fails_though_its_results_are_right(
    subject: str, names: list[str], told: str
) -> None:
    fails(ran_as(subject, in_every_case(subject, names)), told)


def test_a_fallback_of_one_case_is_not_hidden_by_the_others_and_a_backward_that_nothing_ran_fails() -> (
    None
):
    ran = {**healthy("sdpa-flash"), BFLOAT16: [SOFTMAX]}
    fails(ran_as("sdpa-flash", ran), f"{BFLOAT16}: ran softmax_warp_forward")
    forward = [name for name in healthy("sdpa-flash")["float16 causal"] if "flash_fwd" in name]
    found = ran_as("sdpa-flash", in_every_case("sdpa-flash", forward))
    fails(found, "no CUDA kernel like pytorch_flash::flash_bwd ran")
