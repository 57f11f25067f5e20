"""Judges of the gpu tier, on evidence that real runs recorded: as it is, and with one change."""

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

H100_RUN = "cu130-torch211-py312-sm90/h100"
H100_RUN_WITH_XFORMERS = "cu126-torch27/h100"  # xformers' wheels are for CUDA 12
H100_NAME = "NVIDIA H100 80GB HBM3"
DENSE = "flash-attn-dense"
CUTLASS = "xformers-cutlass"
CASE = "cases|dim 64 causal"
BFLOAT16_CASE = "bfloat16 cross"
FIGURE = "observed|figures|mean error"


@cache
def read_run(name: str) -> Facts:
    return recorded.data(name)


def run_with(subject: str) -> Facts:
    """Return the recorded run on an H100 that has a claim about this subject."""
    return read_run(H100_RUN_WITH_XFORMERS if subject.startswith("xformers") else H100_RUN)


def claim_about(subject: str, **expect: Any) -> Claim:
    """Return the recorded claim about a subject, expecting something else as well."""
    (data,) = (
        claim
        for claim in run_with(subject)["claims"]
        if claim["subject"] == subject and claim["tier"] == "gpu"
    )
    claim = Claim.from_json(data)
    return Claim.from_json({**data, "expect": {**claim.expect, **expect}})


def evidence_about(subject: str) -> Facts:
    """Return what was recorded for the claim about a subject."""
    probe = claim_about(subject).probe
    (record,) = (record for record in run_with(subject)["records"] if record["probe"] == probe)
    (measurement,) = (
        measurement for measurement in record["measurements"] if measurement["subject"] == subject
    )
    evidence: Facts = measurement["evidence"]
    return evidence


def judge_recorded(subject: str, path: str = "", value: Any = dict, **expect: Any) -> Finding:
    """Judge recorded evidence with another value at `path` (support.judging.spoiled).

    By default it is not changed. `expect`: what the claim expects otherwise than recorded.
    """
    return judge_claim(
        claim_about(subject, **expect), spoiled(evidence_about(subject), path, value)
    )


def as_if_all_were_float16(cases: Facts) -> Facts:
    return {name: {**case, "dtype": "float16"} for name, case in cases.items()}


def without_results(case: Facts) -> Facts:
    return {**case, "outputs": {}, "controls": {"x": {}}}


def seen_by_cuda_and_torch(gpus: Sequence[Facts]) -> Any:
    """Return a change of evidence: libcuda and torch both see these GPUs."""
    return lambda evidence: {**evidence, "cuda": {"gpus": gpus}, "torch": {"gpus": gpus}}


A100 = {"name": "NVIDIA A100", "capability": [8, 0], "memory": 1}
FAULTS: list[tuple[str, str, Any, str]] = [
    (DENSE, "cases", as_if_all_were_float16, "was run in bfloat16"),
    (DENSE, CASE, without_results, "gave no result"),
    # torch's own kernel or library in its place
    (DENSE, "kernels|matching", dict.fromkeys, "no CUDA kernel like"),
    (DENSE, "libraries", dict.fromkeys, "the kernel's library, a file like"),
    ("gpus", "", seen_by_cuda_and_torch([]), "the container 1 GPU, and programs there see 0"),
    ("gpus", "cuda|gpus", lambda gpus: gpus * 2, "the container 1 GPU, and programs there see 2"),
    (
        "gpus",
        "",
        seen_by_cuda_and_torch([A100]),
        f"GPU 0 is NVIDIA A100 (8.0) in the container, and {H100_NAME} (9.0) on the host",
    ),
    (
        "gpus",
        "libcuda",
        lambda files: [*files, "/opt/libcuda.so.1"],
        "2 driver libraries are loaded",
    ),
    # the memory of bfloat16 where 4 bits are claimed; and a bound that bfloat16 keeps as well
    (
        "weights",
        "memory",
        lambda memory: {**memory, "quantised": memory["bfloat16"]},
        "bytes of GPU memory, and should take at most",
    ),
    (
        "weights",
        "memory",
        lambda memory: {**memory, "bfloat16": memory["quantised"]},
        "proves nothing: the same model in bfloat16 takes",
    ),
    # the rows of wrong.yaml
    *(
        (subject, path, value, reason)
        for subject, reason, changes in wrong("gpu", case=CASE, figure=FIGURE)
        for path, value in (changes or {}).items()
    ),
]


@pytest.mark.parametrize("subject", sorted({row[0] for row in FAULTS}))
def test_evidence_passes_as_it_was_recorded(subject: str) -> None:
    assert judge_recorded(subject).status is Status.PASS


@pytest.mark.parametrize(
    ("subject", "path", "value", "reason"), FAULTS, ids=[f"{row[0]}-{row[3]}" for row in FAULTS]
)
def test_each_fault_fails_and_is_named(subject: str, path: str, value: Any, reason: str) -> None:
    fails(judge_recorded(subject, path, value), reason)


TOO_OLD = "7.5 is below 8.0"


@pytest.mark.parametrize(
    ("subject", "path", "value", "expect", "status", "reason"),
    [
        pytest.param(
            DENSE, "kernels|works", False, {}, Status.UNPROVEN, "profiler", id="profile-incomplete"
        ),
        pytest.param(
            "scaled-mm",
            "",
            dict,
            {"not_applicable": TOO_OLD},
            Status.NOT_APPLICABLE,
            TOO_OLD,
            id="host-says-gpu-too-old",
        ),
        pytest.param(
            DENSE,
            "gated",
            TOO_OLD,
            {"capability": None},
            Status.NOT_APPLICABLE,
            TOO_OLD,
            id="gpu-says-too-old-and-host-unknown",
        ),
        pytest.param(
            "sdpa-cudnn",
            "",
            dict,
            {"left_out": {"odd": "past the end"}},
            Status.PASS,
            "not claimed: past the end",
            id="case-left-out",
        ),
    ],
)
def test_what_is_no_fault_of_the_image_does_not_fail_and_is_named(
    subject: str, path: str, value: Any, expect: Facts, status: Status, reason: str
) -> None:
    finding = judge_recorded(subject, path, value, **expect)

    assert finding.status is status
    assert reason in finding.reason


def as_if_on_turing(evidence: Facts) -> Facts:
    """Return evidence as a GPU gives it that is too old for the case in bfloat16."""
    cases = {**evidence["cases"], BFLOAT16_CASE: {"gated": TOO_OLD, "dtype": "bfloat16"}}
    return {**evidence, "cases": cases, "device": {**evidence["device"], "capability": [7, 5]}}


def test_a_case_that_the_hosts_gpu_cannot_run_is_not_expected() -> None:
    expect = {
        "capability": [7, 5],
        "cases": ["float16 causal"],
        "tolerance": {"float16": "T"},
        "left_out": {BFLOAT16_CASE: TOO_OLD},
    }

    finding = judge_recorded(CUTLASS, "", as_if_on_turing, **expect)

    assert finding.status is Status.PASS
    assert f"not claimed: {TOO_OLD}" in finding.reason


def test_a_case_that_the_hosts_gpu_can_run_is_expected() -> None:
    assert judge_recorded(CUTLASS).status is Status.PASS
    assert judge_recorded(CUTLASS, f"cases|{BFLOAT16_CASE}", KeyError).status is Status.FAIL


def test_a_gpu_may_leave_out_a_case_if_no_host_was_known() -> None:
    finding = judge_recorded(CUTLASS, "", as_if_on_turing, capability=None)

    assert finding.status is Status.PASS
    assert "of 1 case use" in finding.reason
    assert f"not claimed: {TOO_OLD}" in finding.reason


def test_a_gpu_that_leaves_out_every_case_makes_the_claim_not_applicable() -> None:
    def leave_out_all(cases: Facts) -> Facts:
        return {name: {"gated": "5.2 is below 6.0"} for name in cases}

    finding = judge_recorded(CUTLASS, "cases", leave_out_all, capability=None)

    assert finding[:2] == (Status.NOT_APPLICABLE, "5.2 is below 6.0, 5.2 is below 6.0")


def test_a_gpu_may_not_leave_out_a_case_that_the_host_claims() -> None:
    finding = judge_recorded(CUTLASS, "", as_if_on_turing, capability=[7, 5])

    fails(finding, f"can't run the case {BFLOAT16_CASE}, and was expected to: {TOO_OLD}")


def test_any_of_a_hosts_different_gpus_may_have_run_it_and_no_other() -> None:
    two_gpus = {"capability": [8, 6], "capabilities": [[8, 6], [8, 9]]}

    on_one_of_them = judge_recorded(DENSE, "device|capability", [8, 9], **two_gpus)
    on_another = judge_recorded(DENSE, **two_gpus)  # the recorded H100

    assert on_one_of_them.status is Status.PASS
    fails(on_another, "capability 9.0, and those of this machine have 8.6, 8.9")


NEEDS_NEWER_GPU = "cutlassF: requires device with capability > (7, 0)"


@pytest.mark.parametrize(
    ("reasons", "status"),
    [
        pytest.param([NEEDS_NEWER_GPU], Status.NOT_APPLICABLE, id="gpu"),
        pytest.param(
            ["cutlassF: xFormers wasn't build with CUDA support"], Status.FAIL, id="build"
        ),
        pytest.param([NEEDS_NEWER_GPU, "b: operator wasn't built"], Status.FAIL, id="both"),
    ],
)
def test_a_library_may_refuse_to_run_only_because_of_the_gpu(
    reasons: list[str], status: Status
) -> None:
    assert judge_recorded(DENSE, "declined", reasons).status is status


def test_variables_that_may_explain_a_fault_are_named_with_it() -> None:
    evidence = spoiled(evidence_about(DENSE), f"{CASE}|finite", False)
    evidence["environment"] = {"TRITON_INTERPRET": "1"}

    finding = judge_claim(claim_about(DENSE), evidence)

    fails(finding, "(TRITON_INTERPRET=1 is set)")


def judge_mig_slice_of(gpu_name: str) -> Finding:
    """Judge a container that sees one slice of a GPU, on a host with two H100s."""
    host_gpu = {"name": H100_NAME, "capability": [9, 0], "memory": 1}
    mig_slice = {"name": f"{gpu_name} MIG 1g.10gb", "capability": [9, 0], "memory": 1}
    inventory = {"driver": "", "gpus": [host_gpu, host_gpu]}
    return judge_recorded("gpus", "", seen_by_cuda_and_torch([mig_slice]), inventory=inventory)


def test_a_mig_slice_of_a_host_gpu_passes() -> None:
    assert judge_mig_slice_of(H100_NAME).status is Status.PASS


def test_a_mig_slice_of_another_gpu_fails() -> None:
    fails(judge_mig_slice_of("NVIDIA A100-SXM4-40GB"), "is a slice of no GPU")


def test_without_an_inventory_libcuda_and_torch_must_see_the_same_gpus() -> None:
    assert judge_recorded("gpus", inventory=None).status is Status.PASS
    assert judge_recorded("gpus", "torch|gpus", [], inventory=None).status is Status.FAIL


# Which CUDA kernels ran. Those of torch's single operators run around any kernel.
COPY = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<...> >"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>"
TORCH_FLASH = "void pytorch_flash::flash_fwd_kernel<...>"
UNKNOWN = "void frob::nicate_kernel<4>(float*)"
INT8_PRODUCT = "void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_64x64_128x5_tn_align16>"

TABLE = table()
NEWEST = dict.fromkeys(("torch", "triton", "bitsandbytes", "liger-kernel", "flash-attn"), "99")
SUBJECTS_WITH_NAMES = [
    claim["subject"]
    for claim in read_run(H100_RUN)["claims"]
    if claim["subject"] in TABLE and TABLE[claim["subject"]].expected_kernels
]


def judge_as_if_ran(subject: str, ran: Mapping[str, Sequence[str]], **versions: str) -> Finding:
    """Judge a kernel by today's table, with its results as recorded.

    `ran`: case -> the CUDA kernels that ran for it, and that plain torch did not run. `versions`
    decide which names are expected; all others are the newest.
    """
    names = expected_path(TABLE[subject], {**NEWEST, **versions})
    return judge_recorded(
        subject, "kernels", lambda profile: {**profile, "ran": ran, "matching": {}}, **names
    )


def in_every_case(subject: str, names: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return each case of a kernel -> these names; the subject for one that only observes."""
    return dict.fromkeys(TABLE[subject].cases or [subject], names)


def as_recorded(subject: str) -> dict[str, Sequence[str]]:
    """Return what was recorded, as if each case had run all of it, with a copy beside it."""
    matching = evidence_about(subject)["kernels"]["matching"]
    names = [name for names_like in matching.values() for name in names_like]
    if subject == "int8":
        # The product runs in its case, and the quantiser while it is observed.
        quantiser = [name for name in names if "kInt8" in name]
        return {**in_every_case(subject, [INT8_PRODUCT]), subject: quantiser}
    return in_every_case(subject, [*names, COPY])


@pytest.mark.parametrize("subject", SUBJECTS_WITH_NAMES)
def test_a_kernel_that_ran_on_an_h100_is_known_by_its_name(subject: str) -> None:
    finding = judge_as_if_ran(subject, as_recorded(subject))

    assert finding.status is Status.PASS, finding.reason
    assert "no name is known" not in finding.reason


@pytest.mark.parametrize("subject", SUBJECTS_WITH_NAMES)
def test_a_kernel_with_an_unknown_name_passes_and_is_named(subject: str) -> None:
    finding = judge_as_if_ran(subject, in_every_case(subject, [COPY, UNKNOWN]))

    assert finding.status is Status.PASS, finding.reason
    assert "ran as frob::nicate_kernel: no name is known for " in finding.reason


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
def test_a_kernel_is_known_by_the_name_that_it_has_in_an_older_torch(
    subject: str, torch: str, names: list[str]
) -> None:
    finding = judge_as_if_ran(subject, in_every_case(subject, names), torch=torch)

    assert finding.status is Status.PASS, finding.reason
    assert "no name is known" not in finding.reason


UNQUANTISED = "which is a product of unquantised numbers"
FALLBACKS: list[tuple[str, list[str], str]] = [
    ("fullgraph", [COPY, SOFTMAX], "in the case float32, the claimed kernel did not run"),
    ("fullgraph", [], "in the case float32, the claimed kernel did not run (none was seen)"),
    ("sdpa-flash", [COPY, SOFTMAX], "kernel ran: softmax_warp_forward, which is plain products'"),
    (
        "sdpa-cudnn",
        [TORCH_FLASH],
        "kernel ran: pytorch_flash::flash_fwd_kernel, which is FlashAttention's",
    ),
    (
        "sdpa-efficient",
        ["cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7"],
        "which is cuDNN's",
    ),
    ("sdpa-math", [TORCH_FLASH], "which is FlashAttention's"),
    (DENSE, [TORCH_FLASH, COPY], "which is torch's own FlashAttention"),
    ("scaled-mm", ["nvjet_sm90_tst_64x8_64x16_1x4_h_bz_TNT", COPY], UNQUANTISED),
    (
        "torchao-inference",
        ["sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4"],
        UNQUANTISED,
    ),
    ("jit", [], "in the case int32, the claimed kernel did not run"),
    ("rms-norm", [COPY], "in the case float32, the claimed kernel did not run"),
    ("fp4", [COPY], "in the case fp4, the claimed kernel did not run"),
    # the kernel of the control with 32-bit states, and no other
    (
        "adamw8bit",
        ["void kOptimizer32bit2State<float, 0>(float*, float*)", COPY],
        "(seen were kOptimizer32bit2Sta",
    ),
]


@pytest.mark.parametrize(
    ("subject", "names", "reason"), FALLBACKS, ids=lambda value: str(value)[:40]
)
def test_a_fallback_fails_although_its_results_are_right(
    subject: str, names: list[str], reason: str
) -> None:
    fails(judge_as_if_ran(subject, in_every_case(subject, names)), reason)


def test_a_fallback_in_one_case_is_not_hidden_by_the_others() -> None:
    ran = {**as_recorded("sdpa-flash"), BFLOAT16_CASE: [SOFTMAX]}

    finding = judge_as_if_ran("sdpa-flash", ran)

    fails(finding, f"in the case {BFLOAT16_CASE} another kernel ran: softmax_warp_forward")


def test_a_part_of_the_kernel_that_ran_in_no_case_fails() -> None:
    names = as_recorded("sdpa-flash")["float16 causal"]
    only_forward = [name for name in names if "flash_fwd" in name]

    finding = judge_as_if_ran("sdpa-flash", in_every_case("sdpa-flash", only_forward))

    fails(finding, "no CUDA kernel like pytorch_flash::flash_bwd ran")
